//! The transaction by which a node claims the leadership.

use polis_consensus::{KvError, Transaction};
use polis_identity::NodeId;
use polis_proto::curator_state::{Leader, LeaderAlive};
use prost::Message as _;

use crate::state::Fence;
use crate::{LeaderState, State, layout};

/// The claims and signs of life as a node last saw them: what its own claim is conditioned on. Zero stands for a key that is
/// not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Revision of the present claim.
    pub claim: i64,
    /// Revision of the last sign of life, when that is to be the last one also at the time of the claim.
    pub alive: Option<i64>,
}

/// A claim that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Something has changed since it was decided to claim.
    #[error("the leadership was claimed by another node, or its leader gave a sign of life")]
    Outdated,
    /// etcd did not do it, or did not say whether it did.
    #[error("the leadership could not be claimed")]
    Etcd(#[source] KvError),
}

/// Claims the leadership for `node`, provided that everything is as it was seen. Returns the state as its leader has it, and
/// whether the cluster has a member list.
///
/// # Errors
///
/// When somebody else was faster, or etcd does not say that it is done.
pub async fn claim(
    state: &State,
    node: &NodeId,
    raft_term: u64,
    seen: Seen,
) -> Result<(LeaderState, bool), ClaimError> {
    let value = Leader { node_id: node.to_string(), raft_term };
    let alive = LeaderAlive { node_id: node.to_string(), counter: 0 };
    let mut transaction = Transaction::new();
    let expected = [(layout::leader(), Some(seen.claim)), (layout::leader_alive(), seen.alive)];
    for (key, revision) in expected {
        transaction = match revision {
            None => transaction,
            Some(0) => transaction.if_absent(key),
            Some(revision) => transaction.if_modified_at(key, revision),
        };
    }
    let transaction = transaction
        .put(layout::leader(), value.encode_to_vec())
        .put(layout::leader_alive(), alive.encode_to_vec())
        .get(layout::epoch());
    match state.root().transact("curator/leadership/claim", transaction).await {
        Ok(committed) => {
            let has_epoch = committed.found.iter().any(|found| !found.is_empty());
            let fence = Fence { revision: committed.revision };
            Ok((LeaderState::new(state.clone(), fence, *node, raft_term), has_epoch))
        }
        Err(KvError::PreconditionFailed { .. }) => Err(ClaimError::Outdated),
        Err(
            error @ (KvError::Unavailable { .. }
            | KvError::NoLeader { .. }
            | KvError::OutcomeUnknown { .. }
            | KvError::NoSpace { .. }
            | KvError::LeaseNotFound
            | KvError::Refused { .. }),
        ) => Err(ClaimError::Etcd(error)),
    }
}
