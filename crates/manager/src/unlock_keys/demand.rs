//! What the members of the consensus ask of a node about the cluster's half of its key (`cold-start.md`, "Threshold"). Pure.

use polis_identity::NodeId;
use polis_unlock::{MemberList, Scheme, Split};

use super::plan::Demand;

/// Most members with a vote of a cluster whose members keep the cluster's half of their own keys: of two, one may be dead, and the
/// other must come back alone.
const MOST_VOTERS_WITH_COPIES: u32 = 2;

/// How the node stands in the consensus, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Members with a vote.
    pub voters: u32,
    /// What part the node has in it.
    pub place: Place,
}

/// A node's part in the consensus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It runs no member.
    None,
    /// Its member has no vote yet.
    Learner,
    /// Its member has a vote.
    Voter,
}

/// What is asked of a node. The newest list that names it counts. Before one does, how the leader sees it: a learner is about to get a
/// vote, and is as in the cluster that it then makes; of a larger one nobody can say who is to hold shares.
pub(super) fn demand(list: Option<&MemberList>, node: &NodeId, standing: Option<Standing>) -> Demand {
    if let Some((list, member)) = list.and_then(|list| Some((list, list.member(node)?))) {
        return match Scheme::for_member(list, member.standing) {
            Ok(Scheme::Local) => Demand::Copy,
            Ok(scheme @ (Scheme::Copies | Scheme::Shamir { .. })) => Demand::Shares { needed: scheme.shares_needed() },
            // The leader makes no such list, and nothing is done because of one.
            Err(_) => Demand::Unsaid,
        };
    }
    match standing {
        None => Demand::Unsaid,
        Some(Standing { place: Place::None, .. }) => Demand::Guest,
        Some(Standing { place: Place::Learner, voters }) if voters < MOST_VOTERS_WITH_COPIES => Demand::Copy,
        Some(Standing { place: Place::Voter, voters }) if voters <= MOST_VOTERS_WITH_COPIES => Demand::Copy,
        Some(Standing { place: Place::Learner | Place::Voter, .. }) => Demand::Unsaid,
    }
}

/// Whether a key is split already as a list asks of this node. One of an earlier incarnation is split anew, so that those who open shares
/// hear that the ones before it are void.
pub(super) fn fits(split: &Split, list: &MemberList, node: &NodeId) -> bool {
    let scheme = list.member(node).and_then(|member| Scheme::for_member(list, member.standing).ok());
    let mut held: Vec<NodeId> = split.holders.iter().map(|held| held.holder).collect();
    held.sort_unstable();
    let others = list.members().iter().map(|member| member.node_id).filter(|id| id != node);
    scheme == Some(split.scheme) && split.epoch.incarnation == list.epoch().incarnation && held.into_iter().eq(others)
}

#[cfg(test)]
mod tests;
