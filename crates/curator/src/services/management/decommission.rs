//! DecommissionNode: a node without roles is to erase its key material (metropolis.md, K.1, K2).
//!
//! The wish is written beside the node's record; on the wire the node is UP until it has reported that it is done.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::api::{DecommissionNodeRequest, DecommissionNodeResponse};
use polis_proto::common::{NodeRoles, NodeState};
use polis_proto::curator_state::{DecommissionPhase, NodeEnrolment};
use prost::Message as _;
use tonic::Status;

use super::roles::names;
use super::target::target;
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::services::text::state_name;
use crate::{LeaderState, layout};

/// Asks a node to erase its key material. Repeating it changes nothing.
pub(super) async fn decommission(
    core: &Core,
    leader: &LeaderState,
    request: DecommissionNodeRequest,
) -> Result<DecommissionNodeResponse, Status> {
    let id = target(request.node.map(Into::into))?;
    // Nobody gives it a role meanwhile.
    let _one_at_a_time = core.lifecycle().await?;
    repeat(|| try_decommission(leader, &id)).await?;
    Ok(DecommissionNodeResponse {})
}

async fn try_decommission(leader: &LeaderState, id: &NodeId) -> Result<(), Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let key = layout::enrolment(id);
    let known = leader.get_message::<NodeEnrolment>(&key).await?;
    let phase = known.as_ref().map_or(DecommissionPhase::None, |known| known.value.decommission());
    let is_queued = leader.get(&layout::queued_join(id)).await?.is_some();
    if !decide(found.value.state, phase, &found.value.roles, is_queued)? {
        return Ok(());
    }
    let transaction = match &known {
        Some(known) => Transaction::new().if_modified_at(key.as_str(), known.revision),
        None => Transaction::new().if_absent(key.as_str()),
    };
    let mut enrolment = known.map(|known| known.value).unwrap_or_default();
    enrolment.set_decommission(DecommissionPhase::Requested);
    let transaction = transaction
        .if_modified_at(layout::node(id), found.revision)
        .if_absent(layout::queued_join(id))
        .put(key, enrolment.encode_to_vec());
    leader.transact("curator/node/decommission", transaction).await?;
    Ok(())
}

/// Whether there is something to ask of the node.
fn decide(state: NodeState, phase: DecommissionPhase, roles: &NodeRoles, is_queued: bool) -> Result<bool, Status> {
    match (state, phase) {
        (NodeState::Decommissioned, _)
        | (
            NodeState::Up,
            DecommissionPhase::Requested | DecommissionPhase::CleaningUp | DecommissionPhase::Decommissioned,
        ) => return Ok(false),
        (NodeState::Up, DecommissionPhase::None) => {}
        (NodeState::New | NodeState::Standby | NodeState::Invalid, _) => {
            return Err(Status::failed_precondition(format!(
                "the node is {}, and only a node that is UP has something to erase; delete it right away",
                state_name(state)
            )));
        }
    }
    let names = names(roles);
    if !names.is_empty() {
        return Err(Status::failed_precondition(format!(
            "the node still has roles ({}); take them away first",
            names.join(", ")
        )));
    }
    if is_queued {
        return Err(Status::failed_precondition(
            "the node waits to become a consensus member; take that role away first",
        ));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use polis_proto::common::node_roles::KubernetesWorker;
    use tonic::Code;

    use super::*;

    #[test]
    fn only_an_idle_node_that_is_up_is_asked() {
        use DecommissionPhase::{CleaningUp, Decommissioned, None as NotAsked, Requested};
        let idle = NodeRoles::default();
        let busy = NodeRoles { kubernetes_worker: Some(KubernetesWorker {}), ..NodeRoles::default() };
        for (state, phase, roles, is_queued, expected) in [
            (NodeState::Up, NotAsked, &idle, false, Ok(true)),
            (NodeState::Up, Requested, &idle, false, Ok(false)),
            (NodeState::Up, CleaningUp, &idle, false, Ok(false)),
            (NodeState::Up, Decommissioned, &idle, false, Ok(false)),
            (NodeState::Decommissioned, Decommissioned, &idle, false, Ok(false)),
            (NodeState::Up, NotAsked, &busy, false, Err(Code::FailedPrecondition)),
            (NodeState::Up, NotAsked, &idle, true, Err(Code::FailedPrecondition)),
            (NodeState::New, NotAsked, &idle, false, Err(Code::FailedPrecondition)),
            (NodeState::Standby, NotAsked, &idle, false, Err(Code::FailedPrecondition)),
        ] {
            let found = decide(state, phase, roles, is_queued).map_err(|status| status.code());
            assert_eq!(found, expected, "{state:?}, {phase:?}, {roles:?}, {is_queued}");
        }
    }
}
