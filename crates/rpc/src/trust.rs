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
    /// Whether this node would have heard of a change.
    pub news: News,
}

/// Whether a node would have heard whom its cluster lets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum News {
    /// It has no contact with the leader, or leads without a quorum: it goes by what it knew last. Other nodes may still read the
    /// cluster's status; calls of theirs that need more are refused with UNAVAILABLE.
    #[default]
    CutOff,
    /// It has contact again, and is yet to be told what it missed. It takes a moment, in which nodes are answered nothing: the first
    /// answer after contact is by what is known then.
    CatchingUp,
    /// It has contact, and knows all that there was to know when that began.
    UpToDate,
}

impl Trust {
    /// Whether this node would have heard of a change.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.news == News::UpToDate
    }
}
