//! UpdateNodeClusterNetworking: a node tells how its pods are reached.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::common::NodeClusterNetworking;
use polis_proto::curator_api::{UpdateNodeClusterNetworkingRequest, UpdateNodeClusterNetworkingResponse};
use tonic::Status;

use crate::services::clusternet;
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::{LeaderState, NodeRecord, layout};

/// Replaces what the calling node has told before.
pub(super) async fn update(
    core: &Core,
    leader: &LeaderState,
    id: &NodeId,
    request: UpdateNodeClusterNetworkingRequest,
) -> Result<UpdateNodeClusterNetworkingResponse, Status> {
    let networking = request.clusternet.ok_or_else(|| Status::invalid_argument("clusternet is not set"))?;
    // No two nodes get the same key.
    let _one_at_a_time = core.networking().await?;
    repeat(|| try_update(leader, id, &networking)).await?;
    Ok(UpdateNodeClusterNetworkingResponse {})
}

async fn try_update(leader: &LeaderState, id: &NodeId, networking: &NodeClusterNetworking) -> Result<(), Failure> {
    let nodes = leader.nodes().await?;
    let Some(found) = nodes.iter().find(|node| node.value.id == *id) else {
        return Err(Core::unknown_node(leader, id).await?.into());
    };
    let Some(address) = found.value.address() else {
        return Err(Status::failed_precondition(format!(
            "{id} has no address yet: it tells its status before how its pods are reached"
        ))
        .into());
    };
    clusternet::check(networking, address).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let is_taken = |record: &NodeRecord| {
        let key = record.clusternet.as_ref().map(|known| &known.wireguard_pubkey);
        record.id != *id && key == Some(&networking.wireguard_pubkey)
    };
    if let Some(other) = nodes.iter().find(|node| is_taken(&node.value)) {
        return Err(Status::invalid_argument(format!("wireguard_pubkey is the key of {}", other.value.id)).into());
    }
    if found.value.clusternet.as_ref() == Some(networking) {
        return Ok(());
    }
    let record = NodeRecord { clusternet: Some(networking.clone()), ..NodeRecord::clone(&found.value) };
    let key = layout::node(id);
    let transaction = Transaction::new().if_modified_at(key.as_str(), found.revision).put(key, record.encode());
    leader.transact("curator/node/networking", transaction).await?;
    Ok(())
}
