//! How members keep the keys of their data, and who comes back when all of them have lost power. Pure.
//!
//! Each member that encrypts its data splits its own cluster unlock key among the others, and reports how (`cold-start.md`). It
//! comes back alone when it keeps a copy, and else once enough of those that hold a share are up. The leader sees to it that this
//! fits who has a vote: before a vote is given or taken, every member that can be asked must have a file that opens with **every
//! quorum of both**, of those with a vote before the change and of those after it.

use std::collections::{BTreeMap, BTreeSet};

use polis_identity::NodeId;
use polis_proto::curator_state::{NodeEnrolment, SplitReport};
use polis_unlock::{Epoch, Scheme, quorum};

/// Shares that give a key back in a cluster with so many voters: the owner is one of a quorum, and needs all others of it. 0: a
/// copy lies beside the node's own half.
pub(crate) fn shares_needed(voters: usize, two_confirmed: bool) -> usize {
    Scheme::of(voters, two_confirmed).map_or(0, |scheme| scheme.shares_needed().into())
}

/// The same while the voters change: what is enough before and after.
pub(crate) fn shares_needed_during(before: usize, after: usize, two_confirmed: bool) -> usize {
    Scheme::during(before, after, two_confirmed).map_or(0, |scheme| scheme.shares_needed().into())
}

/// How a node keeps the key of its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// It needs nobody: its data are not encrypted.
    #[default]
    Alone,
    /// Its data are encrypted, and its version does not split keys.
    CannotSplit,
    /// It splits its key; how it has last reported.
    Splits(Option<Split>),
}

/// How a node has split its key, as it has reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Epoch of the newest member list to which it fits, by the owner's own judgement. A report for an older one says nothing: the
    /// owner may have split its key anew since and not told it yet.
    pub(crate) list: Epoch,
    /// Shares that give the key. 0: a copy lies beside the node's own half.
    pub(crate) shares_needed: usize,
    /// Nodes that hold a share; never the owner.
    pub(crate) holders: BTreeSet<NodeId>,
    /// The owner has got its key from shares.
    pub(crate) is_verified: bool,
}

impl Keeping {
    /// What is known of a node: whether its data are encrypted, and what it has reported.
    pub(crate) fn of(is_encrypted: bool, enrolment: &NodeEnrolment) -> Self {
        match &enrolment.split {
            _ if !is_encrypted => Self::Alone,
            None => Self::CannotSplit,
            Some(report) => Self::Splits(Split::of(report)),
        }
    }

    /// Whether this node needs no further split before these two sets of voters may follow each other, which the list of this epoch
    /// announces. What does not split is not waited for: it would never come.
    pub(crate) fn is_ready(
        &self,
        owner: NodeId,
        epoch: Option<Epoch>,
        before: &BTreeSet<NodeId>,
        after: &BTreeSet<NodeId>,
    ) -> bool {
        match self {
            Self::Alone | Self::CannotSplit => true,
            Self::Splits(None) => false,
            Self::Splits(Some(split)) => {
                let opens_with = |voters: &BTreeSet<NodeId>| {
                    !voters.contains(&owner) || split.opens_with_every_quorum_of(voters, owner)
                };
                let is_tried = split.is_verified || split.shares_needed == 0;
                Some(split.list) >= epoch && is_tried && opens_with(before) && opens_with(after)
            }
        }
    }

    /// Whether the node splits its key.
    pub(crate) const fn splits(&self) -> bool {
        match self {
            Self::Alone | Self::CannotSplit => false,
            Self::Splits(_) => true,
        }
    }

    /// Whether the node has split its key as the members of a cluster without a change do, and has tried it.
    pub(crate) fn is_settled(
        &self,
        owner: NodeId,
        epoch: Option<Epoch>,
        voters: &BTreeSet<NodeId>,
        two_confirmed: bool,
    ) -> bool {
        match self {
            Self::Alone => true,
            Self::CannotSplit | Self::Splits(None) => false,
            Self::Splits(Some(split)) if Some(split.list) < epoch => false,
            Self::Splits(Some(split)) if split.shares_needed == 0 => shares_needed(voters.len(), two_confirmed) == 0,
            Self::Splits(Some(split)) => {
                let is_held = voters.iter().filter(|voter| **voter != owner).all(|voter| split.holders.contains(voter));
                split.shares_needed == shares_needed(voters.len(), two_confirmed)
                    && is_held
                    && split.holders.is_subset(voters)
                    && split.is_verified
            }
        }
    }

    /// Whether the node opens its data once exactly these are up and nobody else.
    fn opens(&self, owner: NodeId, up: &BTreeSet<NodeId>) -> bool {
        match self {
            Self::Alone => true,
            Self::CannotSplit | Self::Splits(None) => false,
            Self::Splits(Some(split)) => split.opens(owner, up),
        }
    }
}

impl Split {
    /// Reads a report. One without an epoch says that nothing was split yet.
    fn of(report: &SplitReport) -> Option<Self> {
        let epoch = Epoch::from(report.epoch?);
        Some(Self {
            list: report.list_epoch.map_or(epoch, |list| epoch.max(list.into())),
            shares_needed: usize::try_from(report.shares_needed).unwrap_or(usize::MAX),
            holders: report.holders.iter().filter_map(|holder| holder.parse().ok()).collect(),
            is_verified: report.verified,
        })
    }

    fn opens(&self, owner: NodeId, up: &BTreeSet<NodeId>) -> bool {
        up.iter().filter(|node| **node != owner && self.holders.contains(node)).count() >= self.shares_needed
    }

    /// Of the worst quorum that the owner is in, as few as can be hold a share.
    fn opens_with_every_quorum_of(&self, voters: &BTreeSet<NodeId>, owner: NodeId) -> bool {
        let without_share = voters.iter().filter(|node| **node != owner && !self.holders.contains(node)).count();
        (quorum(voters.len()) - 1).saturating_sub(without_share) >= self.shares_needed
    }
}

/// Fewest members of which any set of that many comes back when all have lost power; `None` when not even all of them do.
///
/// A set comes back when a quorum of its members opens: the rest gets its keys from those.
pub(crate) fn members_needed(voters: &BTreeSet<NodeId>, keys: &BTreeMap<NodeId, Keeping>) -> Option<usize> {
    let voters: Vec<NodeId> = voters.iter().copied().collect();
    let quorum = quorum(voters.len());
    // At most nine members have 512 sets.
    let mut fails_with = quorum - 1;
    for set in 0_u32..1 << voters.len() {
        let up: BTreeSet<NodeId> =
            voters.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1).map(|(_, node)| *node).collect();
        let opens = |node: &&NodeId| keys.get(*node).is_none_or(|keeping| keeping.opens(**node, &up));
        if up.len() >= quorum && up.iter().filter(opens).count() < quorum {
            fails_with = fails_with.max(up.len());
        }
    }
    (fails_with < voters.len()).then_some(fails_with + 1)
}

/// A removed member that could still be given shares of its key by members that have not heard of its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The node.
    pub(crate) node: NodeId,
    /// Epoch of the first list without it.
    pub(crate) epoch: Epoch,
    /// Fewest shares that may give its key.
    pub(crate) shares_needed: usize,
    /// Nodes that may hold a share and are not erased. Whether they are members does not matter: who was removed meanwhile and has not
    /// heard of this removal helps as well as any other.
    pub(crate) helpers: BTreeSet<NodeId>,
}

impl Unfinished {
    /// The helpers that have not made the list without it durable.
    pub(crate) fn lacking(&self, holds: &BTreeMap<NodeId, Epoch>) -> BTreeSet<NodeId> {
        let lacks = |helper: &&NodeId| holds.get(*helper).is_none_or(|epoch| *epoch < self.epoch);
        self.helpers.iter().filter(lacks).copied().collect()
    }

    /// How it stands, by the newest list that each node has made durable, and by who is a node.
    pub(crate) fn progress(
        &self,
        holds: &BTreeMap<NodeId, Epoch>,
        is_node: impl Fn(&NodeId) -> bool,
    ) -> RemovalProgress {
        let (waited_for, deaf): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            self.lacking(holds).into_iter().partition(|helper| is_node(helper));
        let enough = self.shares_needed.max(1);
        if waited_for.len() + deaf.len() < enough {
            RemovalProgress::Over
        } else if deaf.len() >= enough {
            RemovalProgress::Endless { deaf }
        } else {
            RemovalProgress::Waits { waited_for }
        }
    }
}

/// How the removal of a member stands (`cold-start.md`, "Membership change", E).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemovalProgress {
    /// So few have not heard of it that they cannot help it.
    Over,
    /// These have yet to hear of it.
    Waits {
        /// Nodes that may come back and hear of it.
        waited_for: BTreeSet<NodeId>,
    },
    /// Too many were deleted before they had heard of it, and never will.
    Endless {
        /// They.
        deaf: BTreeSet<NodeId>,
    },
}

/// Fewest shares that may give the key of a member that goes: by what it has reported, or by what the list of its removal says.
///
/// Of one that has not reported for the list before that of its removal, nobody here knows what it has made of the lists since its
/// report; and one that is not known to be open may run all the same, and have collected shares before its removal, in its memory. Then
/// one share is assumed to be enough, so that everybody has to hear of the removal.
pub(crate) fn least_shares(split: &Split, before: Epoch, during: usize, is_open: bool) -> usize {
    let may_have_made = if split.list >= before && is_open { during } else { 1 };
    split.shares_needed.min(may_have_made)
}

#[cfg(test)]
mod tests;
