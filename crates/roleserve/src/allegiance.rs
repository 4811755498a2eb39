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
use polis_unlock::Epoch;

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
    /// Its epoch.
    pub(crate) epoch: Epoch,
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

/// Whether a node with this member, whose newest list has this epoch, follows the candidate.
pub(crate) fn may_follow(member: OwnMember, known: Option<Epoch>, candidate: &Candidate) -> Verdict {
    if is_own_leader(member, &candidate.node_id) {
        return Verdict::Follow;
    }
    // Who knows no list has never heard of any side.
    let Some(known) = known else { return Verdict::Follow };
    let Some(list) = candidate.list else { return may_follow_unseen(member) };
    if list.epoch.incarnation == known.incarnation {
        return Verdict::Follow;
    }
    let is_newer = list.epoch.incarnation > known.incarnation;
    match member {
        OwnMember::Works { .. } => Verdict::Never,
        OwnMember::None | OwnMember::Lost if is_newer && list.names_us => Verdict::Follow,
        OwnMember::None => Verdict::WhenPatienceEnds,
        OwnMember::Lost if is_newer => Verdict::WhenPatienceEnds,
        // What its own data are a part of was made of that side.
        OwnMember::Lost => Verdict::Never,
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
        use Verdict::{Follow, Never, WhenPatienceEnds as Later};
        // Incarnation that is known here; incarnation of the candidate, and whether its list names this node.
        let cases = [
            ("a worker that has heard of nothing", none, None, Some((2, false)), Follow),
            ("a worker", none, Some(1), Some((1, false)), Follow),
            ("a worker, of a recovered cluster", none, Some(1), Some((2, false)), Later),
            ("a worker that is to join there", none, Some(1), Some((2, true)), Follow),
            ("a worker of the recovered cluster, of the old one", none, Some(2), Some((1, false)), Later),
            ("a worker, of one that tells it no list", none, Some(1), None, Follow),
            ("a member in an election", lost, Some(1), Some((1, true)), Follow),
            ("a member that is taken out", lost, Some(1), Some((1, false)), Follow),
            ("a survivor without quorum", lost, Some(1), Some((2, false)), Later),
            ("a survivor that the new list names", lost, Some(1), Some((2, true)), Follow),
            ("a survivor that is not let in", lost, Some(1), None, Later),
            ("a survivor that has lost its list", lost, None, Some((2, false)), Follow),
            ("a recovered one without quorum, of the old side", lost, Some(2), Some((1, true)), Never),
            ("the majority, in a change of its leader", works, Some(1), Some((1, true)), Follow),
            ("the majority, of the cut-off minority", works, Some(1), Some((2, false)), Never),
            ("the majority, of one that names it", works, Some(1), Some((2, true)), Never),
            ("the majority, of one that does not let it in", works, Some(1), None, Never),
            ("the minority, of the majority", works, Some(2), Some((1, true)), Never),
            ("the majority, before its curator knows", settling, Some(1), Some((2, false)), Never),
            ("the same, of its own side", settling, Some(1), Some((1, true)), Follow),
        ];
        for (name, member, known, list, expected) in cases {
            let epoch = |incarnation| Epoch { incarnation, epoch: 5 };
            let list = list.map(|(incarnation, names_us)| CandidateList { epoch: epoch(incarnation), names_us });
            let candidate = Candidate { node_id: leader, list };
            assert_eq!(may_follow(member, known.map(epoch), &candidate), expected, "{name}");
            // Whom the own curator names is followed whatever the lists are.
            let own = OwnMember::Works { leader: Some(leader) };
            assert_eq!(may_follow(own, known.map(epoch), &candidate), Follow, "{name}, named by the own curator");
        }
    }
}
