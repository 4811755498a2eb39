//! DeleteNode: the cluster forgets a node (window W22 of `crash-windows.md`).
//!
//! One transaction takes everything that is known of it away, revokes its certificate and leaves a signed tombstone, so that
//! the node can be told whenever it comes back. Its key is never taken again.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::api::{DeleteNodeRequest, DeleteNodeResponse};
use polis_proto::common::NodeState;
use polis_proto::curator_state::MembershipIntent;
use tonic::Status;

use super::roles::{names, remove_member};
use super::target::target;
use crate::membership::forget_erased;
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::{LeaderState, NodeRecord, Tombstone, layout};

/// How often a member is removed for the deletion of its node. One is enough, if nobody gives it the role meanwhile.
const MAX_REMOVALS: u32 = 3;

/// Which hazards the caller takes.
#[derive(Clone, Copy, Debug)]
struct Bypass {
    has_roles: bool,
    not_decommissioned: bool,
}

/// Deletes a node, for the reason given.
pub(super) async fn delete(
    core: &Core,
    leader: &LeaderState,
    request: DeleteNodeRequest,
    reason: &str,
) -> Result<DeleteNodeResponse, Status> {
    let bypass = Bypass {
        has_roles: request.safety_bypass_has_roles.is_some(),
        not_decommissioned: request.safety_bypass_not_decommissioned.is_some(),
    };
    let id = target(request.node.map(Into::into))?;
    let mut removals = 0;
    while let Outcome::IsMember = repeat(|| try_delete(leader, &id, bypass, reason)).await? {
        // The next attempt finds that it is no member any more, unless somebody makes it one again and again.
        if removals == MAX_REMOVALS {
            return Err(Status::unavailable(format!("{id} is a consensus member again, {MAX_REMOVALS} times by now")));
        }
        remove_member(core, leader, &id, &format!("its node is deleted, {reason}")).await?;
        removals += 1;
    }
    core.heartbeats.forget(&id);
    tracing::warn!("{id} was deleted, {reason}");
    Ok(DeleteNodeResponse {})
}

/// How an attempt ended.
enum Outcome {
    Deleted,
    /// It is a consensus member, or is to become one, and has to be removed first.
    IsMember,
}

async fn try_delete(leader: &LeaderState, id: &NodeId, bypass: Bypass, reason: &str) -> Result<Outcome, Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    check(&found.value, bypass)?;
    let intent = leader.get_message::<MembershipIntent>(&layout::membership_intent()).await?;
    let is_changing = intent.as_ref().is_some_and(|intent| intent.value.node_id == id.to_string());
    let is_queued = leader.get(&layout::queued_join(id)).await?.is_some();
    if found.value.is_consensus_member() || is_changing || is_queued {
        return Ok(Outcome::IsMember);
    }
    let authority = leader.authority().await?;
    let tombstone = Tombstone {
        cluster_id: authority.certificate().cluster_id(),
        public_key: found.value.public_key,
        reason: reason.to_owned(),
    };
    let transaction = Transaction::new()
        .if_modified_at(layout::node(id), found.revision)
        .if_absent(layout::tombstone(id))
        .if_absent(layout::queued_join(id))
        .put(layout::tombstone(id), tombstone.sign(&authority).encode())
        .delete(layout::node(id))
        .delete(layout::join_key(&found.value.join_key))
        .delete_all(format!("{}{id}/", layout::polis_nodes()))
        .delete(layout::owner_proposal(id))
        .delete(layout::node_certificate(id))
        .delete(layout::peer_certificate(id));
    let transaction = match &intent {
        Some(intent) => transaction.if_modified_at(layout::membership_intent(), intent.revision),
        None => transaction.if_absent(layout::membership_intent()),
    };
    let transaction = match found.value.state {
        NodeState::Decommissioned => forget_erased(leader, id, transaction).await?,
        // What has never had a share, and what may still have one.
        NodeState::New | NodeState::Standby | NodeState::Up | NodeState::Invalid => transaction,
    };
    // A certificate is issued together with a change of the record.
    let transaction = match leader.node_certificate(id).await? {
        Some(certificate) => leader.revoke([certificate.value.serial_number().clone()]).await?.add_to(transaction),
        None => transaction,
    };
    leader.transact("curator/node/delete", transaction).await?;
    Ok(Outcome::Deleted)
}

/// Whether the node may be deleted.
fn check(record: &NodeRecord, bypass: Bypass) -> Result<(), Status> {
    let names = names(&record.roles);
    if !names.is_empty() && !bypass.has_roles {
        return Err(Status::failed_precondition(format!(
            "{} still has roles ({}); take them away first, or say that it is to be deleted with them",
            record.id,
            names.join(", ")
        )));
    }
    match record.state {
        NodeState::New | NodeState::Standby | NodeState::Decommissioned => Ok(()),
        NodeState::Up | NodeState::Invalid if bypass.not_decommissioned => Ok(()),
        NodeState::Up | NodeState::Invalid => Err(Status::failed_precondition(format!(
            "{} is UP and holds key material; decommission it first, or say that it is to be deleted without that",
            record.id
        ))),
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_proto::common::NodeRoles;
    use polis_proto::common::node_roles::KubernetesWorker;

    use super::*;

    #[test]
    fn each_hazard_has_a_bypass_of_its_own() {
        let key = NodeKey::generate();
        for (state, has_role, needs) in [
            (NodeState::New, false, [false, false]),
            (NodeState::Standby, false, [false, false]),
            (NodeState::Decommissioned, false, [false, false]),
            (NodeState::Up, false, [false, true]),
            (NodeState::Up, true, [true, true]),
            (NodeState::Standby, true, [true, false]),
        ] {
            let roles =
                NodeRoles { kubernetes_worker: has_role.then_some(KubernetesWorker {}), ..NodeRoles::default() };
            let record = NodeRecord { state, roles, ..crate::common::record(&key) };
            for given in [[false, false], [false, true], [true, false], [true, true]] {
                let bypass = Bypass { has_roles: given[0], not_decommissioned: given[1] };
                let expected = (given[0] || !needs[0]) && (given[1] || !needs[1]);
                assert_eq!(check(&record, bypass).is_ok(), expected, "{state:?}, {has_role}, {bypass:?}");
            }
        }
    }
}
