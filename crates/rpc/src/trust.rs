//! Whom the cluster has let go.

use std::collections::BTreeMap;

use polis_identity::{NodeId, RevocationList};

/// Whom the cluster has let go, and whether this node knows it for sure. A server watches a value of this type
/// ([`ServerSettings`](crate::ServerSettings)) and asks it at each call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Revocations of the cluster's CA, of nodes and of users. `None` while this node has never seen a list: then nothing is
    /// revoked, as far as it knows.
    pub revocations: Option<RevocationList>,
    /// Nodes that were deleted, each with its serialized `polis.curator.v1.SignedTombstone`, which they are shown.
    pub removed_nodes: BTreeMap<NodeId, Vec<u8>>,
    /// Whether this node would have heard of a change: it has contact with the leader, or is the leader with a quorum.
    /// While it is false, calls of nodes that need more than to read the cluster's status are refused with UNAVAILABLE.
    pub in_contact: bool,
}
