//! The nodes of the cluster, followed: one watch for a process, however many want to know.
//!
//! [`Nodes`] runs on every node with a consensus member. It lists the records of the nodes, what Polis keeps beside them, the
//! tombstones and the revocation list, and then follows their changes; when etcd has compacted what comes next, it lists
//! again. From that it serves:
//!
//! - [`Nodes::subscribe_node`]: one node. A change wakes those only who subscribed to that node.
//! - [`Nodes::subscribe_all`]: all nodes. A reader says how much it takes at a time; one that is slow gets the newest state of what
//!   has changed meanwhile, and nothing piles up for it.
//! - [`Nodes::trust`]: whom the cluster has let go.
//! - [`Nodes::orders`]: what every node must learn at once.
//! - [`Nodes::unfinished`]: removals of which not enough nodes have heard.
//!
//! What it knows may be old, by the time that an event takes; who needs to be sure reads the state itself.

mod index;
mod members;
mod nodes;
mod subscription;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use polis_consensus::Member;
use polis_identity::{NodeId, PublicKey};
use polis_proto::curator_state::{self, NodeEnrolment};
use polis_unlock::Epoch;

use crate::{NodeRecord, Versioned};

pub use self::nodes::Nodes;
pub use self::subscription::{AllNodes, Changes, NodeSubscription};

/// What is known of one node. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Its record; absent when there is no such node, or none that can be read.
    pub record: Option<Versioned<Arc<NodeRecord>>>,
    /// What the wire contract has no place for.
    pub enrolment: Option<Versioned<Arc<NodeEnrolment>>>,
    /// Proof that it was deleted: a serialized `SignedTombstone`.
    pub tombstone: Option<Arc<[u8]>>,
}

/// What happened to the record of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordChange {
    /// It is there, new or changed.
    Present(Versioned<Arc<NodeRecord>>),
    /// It is gone.
    Deleted(NodeId),
}

impl RecordChange {
    /// The node.
    #[must_use]
    pub fn node_id(&self) -> &NodeId {
        match self {
            Self::Present(record) => &record.value.id,
            Self::Deleted(id) => id,
        }
    }
}

/// What every node must learn at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterOrders {
    /// Revocation list of the cluster's authority, DER; empty while it is not known.
    pub revocation_list: Vec<u8>,
    /// The signed member list of the present epoch, as it is stored; absent in a cluster that has none yet.
    pub signed_list: Option<curator_state::SignedMemberList>,
    /// Every consensus member, learners among them, ordered by node.
    pub members: Vec<ConsensusMember>,
    /// Of each node that splits its cluster unlock key, the epoch of the split that it has reported, ordered by node: nobody decrypts
    /// a share of an older one for it any more (`cold-start.md`, "Protocol").
    pub floors: Vec<(NodeId, Epoch)>,
    /// Public half of the recovery key; empty while none is set.
    pub recovery_public_key: Vec<u8>,
    /// Whether two members are confirmed to stay two.
    pub two_confirmed: bool,
}

/// One consensus member, as etcd and its node's record have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsensusMember {
    /// Its node.
    pub node_id: NodeId,
    /// Key of the node.
    pub public_key: PublicKey,
    /// Where it was last seen.
    pub addresses: Vec<IpAddr>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
    /// Whether its etcd has ever started.
    pub is_started: bool,
}

impl ConsensusMember {
    /// The member on the node with this record.
    pub(crate) fn of(member: &Member, record: &NodeRecord) -> Self {
        Self {
            node_id: record.id,
            public_key: record.public_key,
            addresses: record.address().into_iter().collect(),
            is_learner: member.is_learner,
            is_started: member.is_started,
        }
    }
}
