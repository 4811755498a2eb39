//! What a node offers to an operator with the recovery key, and what it makes of the answer. Decisions only: the node that calls
//! them has the files and the connections.
//!
//! The order in which the caller acts on [`Recovered`]:
//!
//! 1. It opens its data with the keys, the pending one first, as at every start. Until then nothing that came out of a blob is
//!    believed, as anybody can make a blob, and nothing is written.
//! 2. A record is stored as the journal, sealed anew to the present state of the machine.
//! 3. The node goes on as after any other unlock.

use polis_identity::NodeId;

use crate::{Blob, BlobContent, BlobSubject, ContentKey, OpenBlobError};

/// How a node stands that is asked to recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its data are open, or are not encrypted: there is nothing to recover.
    Open,
    /// It has its sealed record and waits for the cluster's half of the key. It shows itself with its join key.
    Locked(BlobSubject),
    /// Its record does not unseal. It knows of itself only what its disks say in clear, and shows itself with a fresh key.
    Sealed {
        /// Whose data partition it has; absent when that cannot be told without the keys.
        node: Option<NodeId>,
    },
}

/// What a node does with an answer.
#[derive(Clone, PartialEq, Eq)]
pub enum Recovered {
    /// Its own record is there and newer than the blob, so that only the keys of the data are used.
    Keys(BlobContent),
    /// The record comes back, too.
    Record(BlobContent),
}

/// Why a node has no blob to offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToOffer {
    /// There is nothing to recover.
    #[error("the node's data are open: there is nothing to recover")]
    Open,
    /// It keeps no blob.
    #[error(
        "the node has no recovery blob on its ESP: its cluster had no recovery key when it last ran, or the blob was lost with the \
         ESP"
    )]
    NoBlob,
    /// The blob that it keeps is not its own.
    #[error("the recovery blob on the node's ESP is another's: its {what} is {found}, and the node's is {expected}")]
    NotOurs {
        /// What differs.
        what: &'static str,
        /// What the blob says.
        found: String,
        /// What the node knows.
        expected: String,
    },
}

/// Why a node does not take an answer. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAnswer {
    /// It offers no blob, so that there is nothing that the answer could open.
    #[error("the node offers no recovery blob")]
    NothingOffered(#[source] NothingToOffer),
    /// The key opens nothing here.
    #[error("the key does not open the recovery blob that the node has")]
    WrongKey(#[source] OpenBlobError),
}

/// The blob that a node in `state` offers to everybody who asks, if the one that it keeps is its own.
///
/// # Errors
///
/// When there is nothing to recover, or nothing to recover it with.
pub fn offer<'a>(state: &NodeState, kept: Option<&'a Blob>) -> Result<&'a Blob, NothingToOffer> {
    let kept = kept.ok_or(NothingToOffer::NoBlob);
    match state {
        NodeState::Open => Err(NothingToOffer::Open),
        NodeState::Locked(own) => {
            let blob = kept?;
            let subject = blob.subject();
            same("node", &subject.node, &own.node)?;
            same("cluster", &subject.cluster, &own.cluster)?;
            same("join key", &subject.join_key, &own.join_key)?;
            Ok(blob)
        }
        NodeState::Sealed { node: Some(own) } => {
            let blob = kept?;
            same("node", &blob.subject().node, own)?;
            Ok(blob)
        }
        NodeState::Sealed { node: None } => kept,
    }
}

/// What a node in `state` does with the content key that an operator has sent for the blob that it offers.
///
/// # Errors
///
/// When it offers none, or the key does not open it.
pub fn answer(state: &NodeState, kept: Option<&Blob>, key: &ContentKey) -> Result<Recovered, RefusedAnswer> {
    let blob = offer(state, kept).map_err(RefusedAnswer::NothingOffered)?;
    let content = blob.open(key).map_err(RefusedAnswer::WrongKey)?;
    Ok(match state {
        NodeState::Sealed { .. } => Recovered::Record(content),
        NodeState::Locked(_) | NodeState::Open => Recovered::Keys(content),
    })
}

fn same<T: PartialEq + ToString>(what: &'static str, found: &T, expected: &T) -> Result<(), NothingToOffer> {
    if found == expected {
        return Ok(());
    }
    Err(NothingToOffer::NotOurs { what, found: found.to_string(), expected: expected.to_string() })
}

#[cfg(test)]
mod tests {
    use polis_identity::{ClusterId, JoinKey, NodeKey};
    use polis_secret::Secret32;
    use zeroize::Zeroizing;

    use super::*;
    use crate::RecoveryKey;

    fn subject() -> BlobSubject {
        BlobSubject {
            cluster: ClusterId::from_bytes([3; 16]),
            node: NodeId::of(&NodeKey::generate().public()),
            join_key: JoinKey::generate().public(),
        }
    }

    fn content() -> BlobContent {
        BlobContent {
            record: Zeroizing::new(b"a record".to_vec()),
            cluster_unlock_key: Secret32::new([1; 32]),
            pending_cluster_unlock_key: None,
        }
    }

    #[test]
    fn a_node_offers_its_own_blob_while_it_is_locked() {
        let key = RecoveryKey::generate();
        let (own, other) = (subject(), subject());
        let blob = Blob::seal(&key.public(), own, &content()).unwrap();
        let table = [
            (NodeState::Open, Some("open")),
            (NodeState::Locked(own), None),
            (NodeState::Locked(BlobSubject { node: other.node, ..own }), Some("node")),
            (NodeState::Locked(BlobSubject { join_key: other.join_key, ..own }), Some("join key")),
            (NodeState::Locked(BlobSubject { cluster: ClusterId::from_bytes([4; 16]), ..own }), Some("cluster")),
            (NodeState::Sealed { node: Some(own.node) }, None),
            (NodeState::Sealed { node: Some(other.node) }, Some("node")),
            (NodeState::Sealed { node: None }, None),
        ];
        let content_key = blob.content_key(&key).unwrap();
        for (state, problem) in table {
            let offered = offer(&state, Some(&blob));
            let answered = answer(&state, Some(&blob), &content_key);
            match problem {
                None => {
                    assert!(offered.unwrap() == &blob, "{state:?}");
                    let expected = match state {
                        NodeState::Sealed { .. } => Recovered::Record(content()),
                        NodeState::Locked(_) | NodeState::Open => Recovered::Keys(content()),
                    };
                    assert!(answered.unwrap() == expected, "{state:?}");
                }
                Some(problem) => {
                    let error = offered.unwrap_err();
                    assert!(error.to_string().contains(problem), "{state:?}: {error}");
                    assert_eq!(answered.err(), Some(RefusedAnswer::NothingOffered(error)));
                }
            }
        }
    }

    #[test]
    fn without_a_blob_and_with_a_wrong_key_there_is_nothing() {
        let key = RecoveryKey::generate();
        let own = subject();
        let [blob, older] = [(); 2].map(|()| Blob::seal(&key.public(), own, &content()).unwrap());
        for state in [NodeState::Locked(own), NodeState::Sealed { node: None }] {
            assert_eq!(offer(&state, None).err(), Some(NothingToOffer::NoBlob));
            let wrong = older.content_key(&key).unwrap();
            assert_eq!(
                answer(&state, Some(&blob), &wrong).err(),
                Some(RefusedAnswer::WrongKey(OpenBlobError::Changed))
            );
        }
    }
}
