//! What a running node does about the cluster's half of its key: one table (`cold-start.md`, "Threshold").

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

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Nothing,
    /// Keep the key in the journal: the cluster may be unable to give it.
    Keep,
    /// Take the key out of the journal: the cluster gives it.
    Drop,
    /// Replace the key, and then keep it in the journal or not.
    Rotate {
        /// Whether the new key stays in the journal.
        keep: bool,
    },
}

/// Whether the node must be able to open its data alone.
///
/// A learner is about to get a vote: it is as in the cluster that it then makes.
pub(super) const fn keeps_copy(standing: Standing) -> bool {
    match standing.place {
        Place::None => false,
        Place::Learner => standing.voters < MOST_VOTERS_WITH_COPIES,
        Place::Voter => standing.voters <= MOST_VOTERS_WITH_COPIES,
    }
}

/// Decides what to do, of a node that has the key in its journal or not, and is asked to replace it or not.
///
/// A member that no longer needs its copy has had it for long, on a disk that may not forget: its key is replaced. A node that has
/// just come in has never had a use for it, and only drops it.
pub(super) const fn plan(standing: Standing, has_copy: bool, asked: bool) -> Step {
    let keep = keeps_copy(standing);
    match (asked, has_copy, keep, standing.place) {
        (true, _, keep, _) => Step::Rotate { keep },
        (false, false, true, _) => Step::Keep,
        (false, true, false, Place::Voter) => Step::Rotate { keep: false },
        (false, true, false, Place::None | Place::Learner) => Step::Drop,
        (false, true, true, _) | (false, false, false, _) => Step::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_small_clusters_open_alone_and_nobody_else_does() {
        use Place::{Learner, None as Guest, Voter};
        for voters in 1..10 {
            for (place, keep) in [(Guest, false), (Learner, voters == 1), (Voter, voters < 3)] {
                let standing = Standing { voters, place };
                assert_eq!(keeps_copy(standing), keep, "{standing:?}");
                for has_copy in [true, false] {
                    assert_eq!(plan(standing, has_copy, true), Step::Rotate { keep }, "asked, {standing:?} {has_copy}");
                }
            }
        }
        let table = [
            // The founder, alone, with a second member, and with a third.
            (1, Voter, true, Step::Nothing),
            (2, Voter, true, Step::Nothing),
            (3, Voter, true, Step::Rotate { keep: false }),
            (3, Voter, false, Step::Nothing),
            // A node that has just come in.
            (1, Guest, true, Step::Drop),
            (5, Guest, true, Step::Drop),
            (1, Guest, false, Step::Nothing),
            // One that becomes the second member, and one that becomes the third.
            (1, Learner, false, Step::Keep),
            (2, Voter, true, Step::Nothing),
            (2, Learner, false, Step::Nothing),
            (2, Learner, true, Step::Drop),
            (3, Voter, false, Step::Nothing),
            // A cluster that shrinks from three to two.
            (2, Voter, false, Step::Keep),
        ];
        for (voters, place, has_copy, expected) in table {
            assert_eq!(plan(Standing { voters, place }, has_copy, false), expected, "{voters} {place:?} {has_copy}");
        }
    }
}
