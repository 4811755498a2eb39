//! [`SplitState`]: how this node has split its cluster unlock key, as its unlock file says.

use std::collections::BTreeSet;

use polis_identity::NodeId;
use polis_proto::curator_state::SplitReport;
use polis_unlock::Epoch;

/// How this node has split its cluster unlock key among the members. Whoever publishes it has made the split durable and read it
/// back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitState {
    /// Epoch of the newest member list to which the split fits, by the node's own judgement.
    pub list: Epoch,
    /// Epoch of the list for which the key was split: that of the unlock file.
    pub split: Epoch,
    /// Shares that give the key. 0: none, as a copy of the key lies beside the node's own half.
    pub shares_needed: u8,
    /// Nodes that hold a share; never the node itself.
    pub holders: BTreeSet<NodeId>,
    /// Whether the node has collected shares of this split and got its key from them.
    pub is_verified: bool,
}

impl SplitState {
    /// As the cluster is told of it.
    pub(crate) fn report(&self) -> SplitReport {
        let Self { list, split, shares_needed, holders, is_verified } = self;
        SplitReport {
            epoch: Some((*split).into()),
            shares_needed: (*shares_needed).into(),
            holders: holders.iter().map(NodeId::to_string).collect(),
            verified: *is_verified,
            list_epoch: Some((*list).into()),
        }
    }
}
