//! StoreUnlockKey and CheckUnlockKey: how a node replaces the cluster's half of the key of its data partition.
//!
//! The node has made both keys open its data before it asks for the new one to be kept, and makes the old one open them no
//! more only after it was told that the new one is: whatever is lost in between, the key that the cluster keeps opens.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::common::NodeState;
use polis_proto::enrolment::{CheckUnlockKeyResponse, StoreUnlockKeyRequest, StoreUnlockKeyResponse};
use polis_secret::Secret32;
use polis_unlock::ClusterUnlockKey;
use tonic::Status;
use zeroize::Zeroizing;

use super::members;
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::services::text::state_name;
use crate::{LeaderState, NodeRecord, layout};

/// Keeps a new key for the calling node.
pub(super) async fn store(
    leader: &LeaderState,
    id: &NodeId,
    request: StoreUnlockKeyRequest,
) -> Result<StoreUnlockKeyResponse, Status> {
    let bytes = Zeroizing::new(request.cluster_unlock_key);
    let key = Secret32::try_from(&bytes[..]).map_err(|_| {
        Status::invalid_argument(format!("cluster_unlock_key has {} bytes, and a key has 32", bytes.len()))
    })?;
    if repeat(|| try_store(leader, id, &key)).await? {
        tracing::info!("{id} has a new cluster unlock key");
    }
    Ok(StoreUnlockKeyResponse {})
}

/// One attempt. Returns whether the key was another before.
async fn try_store(leader: &LeaderState, id: &NodeId, key: &Secret32) -> Result<bool, Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    if !decide(found.value.state, found.value.cluster_unlock_key.as_ref(), key)? {
        return Ok(false);
    }
    let revision = found.revision;
    let record = NodeRecord { cluster_unlock_key: Some(key.clone()), ..found.value };
    let transaction =
        Transaction::new().if_modified_at(layout::node(id), revision).put(layout::node(id), record.encode());
    leader.transact("curator/node/unlock-key", transaction).await?;
    Ok(true)
}

/// Whether the key has to be written.
fn decide(state: NodeState, kept: Option<&Secret32>, key: &Secret32) -> Result<bool, Status> {
    match (state, kept) {
        (NodeState::Up, Some(kept)) => Ok(kept != key),
        (NodeState::Up, None) => {
            Err(Status::failed_precondition("the data of this node are not encrypted, so that it has no unlock key"))
        }
        (state @ (NodeState::New | NodeState::Standby | NodeState::Decommissioned | NodeState::Invalid), _) => {
            Err(Status::failed_precondition(format!(
                "the node is {}, and only one that is UP has an unlock key to change",
                state_name(state)
            )))
        }
    }
}

/// Tells the calling node which key is kept for it, and how it stands in the consensus.
pub(super) async fn check(core: &Core, leader: &LeaderState, id: &NodeId) -> Result<CheckUnlockKeyResponse, Status> {
    // What the leader reads, it reads with a quorum, and only while it leads.
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?) };
    let members = members::list(core).await?;
    let voters = members.iter().filter(|member| !member.is_learner).count();
    let own = members.iter().find(|member| member.node_id == *id);
    Ok(CheckUnlockKeyResponse {
        unlock_key_hash: found
            .value
            .cluster_unlock_key
            .as_ref()
            .map(|key| ClusterUnlockKey::new(key.clone()).check_value().as_bytes().to_vec())
            .unwrap_or_default(),
        voters: u32::try_from(voters).unwrap_or(u32::MAX),
        member: own.is_some(),
        learner: own.is_some_and(|member| member.is_learner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_member_with_encrypted_data_changes_its_key() {
        let [old, new] = [1, 2].map(|byte| Secret32::new([byte; 32]));
        let outcome = |state, kept: Option<&Secret32>| decide(state, kept, &new).map_err(|status| status.code());
        assert_eq!(outcome(NodeState::Up, Some(&old)), Ok(true));
        assert_eq!(outcome(NodeState::Up, Some(&new)), Ok(false), "a repetition changes nothing");
        assert_eq!(outcome(NodeState::Up, None), Err(tonic::Code::FailedPrecondition));
        for state in [NodeState::New, NodeState::Standby, NodeState::Decommissioned, NodeState::Invalid] {
            assert_eq!(outcome(state, Some(&old)), Err(tonic::Code::FailedPrecondition), "{state:?}");
        }
    }
}
