//! [`ClusterKeys`]: what the running cluster says of a member that asks for its key, read through this node's own member.

use async_trait::async_trait;
use polis_consensus::Consensus;
use polis_curator::State;
use polis_identity::NodeId;
use polis_proto::common::NodeState;
use polis_supervisor::with_causes;
use polis_unlock::{ClusterUnlockKey, ClusterWord};
use polis_unlock_service::CurrentKeys;
use tokio::sync::watch;

/// What the running cluster says of the keys that it keeps, as far as this node has a member that can read them with a quorum.
pub struct ClusterKeys {
    member: watch::Receiver<Option<Consensus>>,
}

impl ClusterKeys {
    /// Asks this member, [`ControlPlane::member`](crate::ControlPlane::member).
    #[must_use]
    pub const fn new(member: watch::Receiver<Option<Consensus>>) -> Self {
        Self { member }
    }

    /// The member, if it knows of a leader and has read with a quorum before. As the data of a member are encrypted with those of its
    /// node, there is none on a node that is locked.
    fn ready(&self) -> Option<Consensus> {
        let member = self.member.borrow().clone()?;
        let is_ready = {
            let status = member.status();
            let status = status.borrow();
            status.is_ready() && status.leader.is_some()
        };
        is_ready.then_some(member)
    }
}

#[async_trait]
impl CurrentKeys for ClusterKeys {
    async fn word(&self, owner: NodeId) -> ClusterWord {
        let Some(member) = self.ready() else { return ClusterWord::Unavailable };
        // A read is answered only after a quorum has confirmed who leads, so that a member that was left behind learns it here.
        match State::new(member.kv_root()).node(&owner).await {
            Ok(Some(record)) => match (record.value.state, record.value.cluster_unlock_key) {
                (NodeState::Up, Some(key)) => ClusterWord::Key(ClusterUnlockKey::new(key)),
                // A key that the cluster does not keep it cannot give; others may have shares of it.
                (NodeState::Up, None) => ClusterWord::Unavailable,
                (NodeState::New | NodeState::Standby | NodeState::Decommissioned | NodeState::Invalid, _) => {
                    ClusterWord::NotUp
                }
            },
            // It was deleted.
            Ok(None) => ClusterWord::NotUp,
            Err(error) => {
                tracing::debug!(%owner, reason = with_causes(&error), "the cluster does not say what the key of a member is");
                ClusterWord::Unavailable
            }
        }
    }
}
