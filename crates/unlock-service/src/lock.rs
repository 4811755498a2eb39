//! What the node tells anybody about its lock.

use std::net::IpAddr;

use polis_identity::{ClusterId, NodeId};
use polis_proto::unlock::{GetLockResponse, get_lock_response};

use crate::UnlockStatus;
use crate::status::describe_answer;

/// Whether the node is locked, and why.
#[derive(Clone, Debug, PartialEq)]
pub enum Lock {
    /// The data are open, or are not encrypted.
    Open,
    /// It waits for others to open its data.
    Locked,
    /// Its own half of the key cannot be unsealed: only the recovery key helps.
    Sealed {
        /// Why it cannot, for people.
        reason: String,
    },
}

/// Who the node is that tells of its lock. Nothing of it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oneself {
    /// The node, as far as it knows: one that cannot unseal does not.
    pub id: Option<NodeId>,
    /// Its cluster, likewise.
    pub cluster: Option<ClusterId>,
    /// Fingerprint of the key that it shows, as it is on its console.
    pub fingerprint: String,
}

/// What anybody is told. `status` is how far the node is while it is locked; `offer` is the recovery blob, or why there is none; absent when the node needs none.
pub(crate) fn response(
    lock: &Lock,
    status: &UnlockStatus,
    oneself: &Oneself,
    offer: Option<Result<Vec<u8>, String>>,
) -> GetLockResponse {
    use get_lock_response::State;
    let (state, reason, status) = match lock {
        Lock::Open => (State::Open, String::new(), None),
        Lock::Locked => (State::Locked, status.describe(), Some(status)),
        Lock::Sealed { reason } => (State::Sealed, reason.clone(), None),
    };
    let (recovery_blob, no_recovery) = match offer {
        Some(Ok(blob)) => (blob, String::new()),
        Some(Err(reason)) => (Vec::new(), reason),
        None => Default::default(),
    };
    GetLockResponse {
        state: state.into(),
        reason,
        counts: status.and_then(|status| status.progress.counts).map(Into::into),
        peers: status.map(peers).unwrap_or_default(),
        fingerprint: oneself.fingerprint.clone(),
        node_id: oneself.id.map(|id| id.to_string()).unwrap_or_default(),
        cluster_id: oneself.cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
        recovery_blob,
        no_recovery,
    }
}

fn peers(status: &UnlockStatus) -> Vec<get_lock_response::Peer> {
    let peer = |peer: &polis_unlock::PeerProgress| {
        let answer = match status.failures.get(&peer.node) {
            Some(failure) => failure.clone(),
            None => peer.answer.as_ref().map(describe_answer).unwrap_or_default(),
        };
        let silent = peer.silent_since.map(|since| status.seconds.saturating_sub(since)).unwrap_or_default();
        get_lock_response::Peer {
            node_id: peer.node.to_string(),
            addresses: peer.addresses.iter().map(IpAddr::to_string).collect(),
            answer,
            silent_seconds: silent.try_into().unwrap_or(u32::MAX),
        }
    };
    status.progress.peers.iter().map(peer).collect()
}
