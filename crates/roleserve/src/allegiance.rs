//! Whom a node may follow. Pure.
//!
//! A leader proves by its certificate that it is of the cluster. That says nothing about which one it leads once there are two: a
//! member that was only cut off and was made a cluster of its own (`polis cluster recover`) leads one, with the same authority and a
//! list of members of a higher incarnation, and the others lead the one that it was made of. Whoever follows a leader does what
//! it says: gives up its consensus role, refuses whom it has revoked. So a member that has its quorum follows its own side and never
//! the other; one that has lost its quorum goes over to a recovered cluster, but not at once, as a change of the leader and a
//! start of all machines look the same at first.

use std::time::Duration;

use polis_identity::NodeId;
use polis_unlock::{Epoch, Lineage};

/// For how long no leader of the own side must have been found before one of another is followed: longer than machines that are
/// switched on together differ in their start, and short enough for somebody who waits for a survivor to join again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The consensus member of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnMember {
    /// There is none, or it was removed by its cluster.
    None,
    /// It has no contact with a quorum.
    Lost,
    /// It has.
    Works {
        /// Who leads, as this node's own curator knows it.
        leader: Option<NodeId>,
    },
}

/// A node that says of itself that it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node_id: NodeId,
    /// What its list of members says; `None` when that is not known.
    pub(crate) list: Option<CandidateList>,
}

/// What the list of a candidate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateList {
    /// Its epoch, for people.
    pub(crate) epoch: Epoch,
    /// How its history stands to that of the list that this node has. Two incarnations of the same number may be those of two members that
    /// were recovered apart from each other.
    pub(crate) lineage: Lineage,
    /// Whether it names the node that asks.
    pub(crate) names_us: bool,
}

/// Whether to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Yes.
    Follow,
    /// When nobody else has been found for [`PATIENCE`].
    WhenPatienceEnds,
    /// No: it leads another side than that of the working member of this node, or one that was given up.
    Never,
}

/// Whether the own curator says that the candidate leads; then no list needs to be looked at.
pub(crate) fn is_own_leader(member: OwnMember, candidate: &NodeId) -> bool {
    member == OwnMember::Works { leader: Some(*candidate) }
}

/// Whether a node with this member, which has a list of members, follows the candidate.
pub(crate) fn may_follow(member: OwnMember, candidate: &Candidate) -> Verdict {
    if is_own_leader(member, &candidate.node_id) {
        return Verdict::Follow;
    }
    let Some(list) = candidate.list else { return may_follow_unseen(member) };
    match (list.lineage, member) {
        (Lineage::Same, _) => Verdict::Follow,
        (Lineage::Later | Lineage::Earlier | Lineage::Parted, OwnMember::Works { .. }) => Verdict::Never,
        (Lineage::Later, OwnMember::None | OwnMember::Lost) if list.names_us => Verdict::Follow,
        (Lineage::Later, OwnMember::None | OwnMember::Lost) => Verdict::WhenPatienceEnds,
        (Lineage::Earlier | Lineage::Parted, OwnMember::None) => Verdict::WhenPatienceEnds,
        // What its own data are a part of was made of that side, or has nothing to do with it.
        (Lineage::Earlier | Lineage::Parted, OwnMember::Lost) => Verdict::Never,
    }
}

/// The same for one that shows no list, or refuses to answer this node at all.
pub(crate) const fn may_follow_unseen(member: OwnMember) -> Verdict {
    match member {
        OwnMember::None => Verdict::Follow,
        OwnMember::Lost => Verdict::WhenPatienceEnds,
        OwnMember::Works { .. } => Verdict::Never,
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    #[test]
    fn who_follows_whom() {
        let [leader, other] = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
        let works = OwnMember::Works { leader: Some(other) };
        let settling = OwnMember::Works { leader: None };
        let (none, lost) = (OwnMember::None, OwnMember::Lost);
        use Lineage::{Earlier, Parted, Same};
        use Verdict::{Follow, Never, WhenPatienceEnds as Later};
        // How the list of the candidate stands to the known one, and whether it names this node.
        let cases = [
            ("a worker", none, Some((Same, false)), Follow),
            ("a worker, of a recovered cluster", none, Some((Lineage::Later, false)), Later),
            ("a worker that is to join there", none, Some((Lineage::Later, true)), Follow),
            ("a worker of the recovered cluster, of the old one", none, Some((Earlier, false)), Later),
            ("a worker, of one that tells it no list", none, None, Follow),
            ("a member in an election", lost, Some((Same, true)), Follow),
            ("a member that is taken out", lost, Some((Same, false)), Follow),
            ("a survivor without quorum", lost, Some((Lineage::Later, false)), Later),
            ("a survivor that the new list names", lost, Some((Lineage::Later, true)), Follow),
            ("a survivor that is not let in", lost, None, Later),
            ("a recovered one without quorum, of the old side", lost, Some((Earlier, true)), Never),
            ("the majority, in a change of its leader", works, Some((Same, true)), Follow),
            ("the majority, of the cut-off minority", works, Some((Lineage::Later, false)), Never),
            ("the majority, of one that names it", works, Some((Lineage::Later, true)), Never),
            ("the majority, of one that does not let it in", works, None, Never),
            ("the minority, of the majority", works, Some((Earlier, true)), Never),
            ("the majority, before its curator knows", settling, Some((Lineage::Later, false)), Never),
            ("the same, of its own side", settling, Some((Same, true)), Follow),
            ("one that was recovered, of another that was", works, Some((Parted, false)), Never),
            ("the same, without quorum", lost, Some((Parted, false)), Never),
            ("the same, of one that names it", lost, Some((Parted, true)), Never),
            ("a worker of one that was recovered, of another that was", none, Some((Parted, false)), Later),
        ];
        for (name, member, list, expected) in cases {
            let epoch = Epoch { incarnation: 2, epoch: 5 };
            let list = list.map(|(lineage, names_us)| CandidateList { epoch, lineage, names_us });
            let candidate = Candidate { node_id: leader, list };
            assert_eq!(may_follow(member, &candidate), expected, "{name}");
            // Whom the own curator names is followed whatever the lists are.
            let own = OwnMember::Works { leader: Some(leader) };
            assert_eq!(may_follow(own, &candidate), Follow, "{name}, named by the own curator");
        }
    }
}
