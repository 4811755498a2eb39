//! JoinNode: a member that has started again asks for its half of the key of its data partition.

use polis_identity::{NodeId, PublicKey};
use polis_proto::common::NodeState;
use polis_proto::curator_api::{JoinNodeRequest, JoinNodeResponse};
use tonic::Status;

use super::register::{Modes, read_configuration};
use crate::services::policy;
use crate::services::text::state_name;
use crate::{LeaderState, StateError, layout};

/// Gives the node whose join key is `key` its half of the key.
pub(super) async fn join(
    leader: &LeaderState,
    key: PublicKey,
    request: JoinNodeRequest,
) -> Result<JoinNodeResponse, Status> {
    let path = layout::join_key(&key);
    let Some(found) = leader.get(&path).await? else {
        return Err(Status::not_found("the cluster knows no node with this join key"));
    };
    let id = String::from_utf8_lossy(&found.value).parse::<NodeId>();
    let id = id.map_err(|source| StateError::damaged(path.as_str(), source))?;
    let node = leader.node(&id).await?.map(|found| found.value);
    // The index and the record are written and deleted together. Read between two transactions, they may still differ.
    let Some(node) = node.filter(|node| node.join_key == key) else {
        return Err(Status::not_found("the cluster knows no node with this join key"));
    };
    let modes = Modes::of(&read_configuration(leader).await?)?;
    policy::check_join(modes.tpm, node.tpm_usage, request.using_sealed_configuration)
        .map_err(|error| Status::permission_denied(format!("{id} cannot join: {error}")))?;
    match node.state {
        NodeState::Up => {
            let key = node.cluster_unlock_key.map(|key| key.expose().to_vec());
            Ok(JoinNodeResponse { cluster_unlock_key: key.unwrap_or_default() })
        }
        state @ (NodeState::New | NodeState::Standby | NodeState::Decommissioned | NodeState::Invalid) => {
            let state = state_name(state);
            Err(Status::failed_precondition(format!("{id} cannot join: it is {state}, and only a node that is UP can")))
        }
    }
}
