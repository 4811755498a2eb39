//! ApproveNode: a machine that has registered is admitted.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::api::{ApproveNodeRequest, ApproveNodeResponse};
use polis_proto::common::NodeState;
use tonic::Status;

use crate::services::core::{Core, parse_key};
use crate::services::failure::{Failure, repeat};
use crate::services::text::state_name;
use crate::{LeaderState, NodeRecord, layout};

/// Admits the machine. Admitting one that is admitted already changes nothing.
pub(super) async fn approve(leader: &LeaderState, request: &ApproveNodeRequest) -> Result<ApproveNodeResponse, Status> {
    let id = NodeId::of(&parse_key("pubkey", &request.pubkey)?);
    repeat(|| try_approve(leader, &id)).await?;
    Ok(ApproveNodeResponse {})
}

async fn try_approve(leader: &LeaderState, id: &NodeId) -> Result<(), Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    match found.value.state {
        NodeState::New => {
            let record = NodeRecord { state: NodeState::Standby, ..found.value };
            let key = layout::node(id);
            let transaction = Transaction::new().if_modified_at(key.as_str(), found.revision);
            leader.transact("curator/node/approve", transaction.put(key, record.encode())).await?;
            Ok(())
        }
        NodeState::Standby | NodeState::Up => Ok(()),
        state @ (NodeState::Decommissioned | NodeState::Invalid) => Err(Status::failed_precondition(format!(
            "{id} is {}, and only a node that has just registered can be approved",
            state_name(state)
        ))
        .into()),
    }
}
