//! Which history of the cluster a member list is of.
//!
//! An incarnation is a number, and two members that are recovered apart from each other (`polis cluster recover`) get the same. What tells
//! the two clusters apart is a random token of each recovery, which all later lists carry on.

use polis_proto::curator_state;

/// Most recoveries that a list remembers. More than anybody will see of one cluster, and few enough that a list of nine members still fits
/// into a frame of the unlock port. Who has slept through more of them takes the list for that of another cluster, and says so.
pub(super) const RECOVERIES_LIMIT: usize = 32;

/// One recovery: the cluster was made anew of what one node or one snapshot had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The incarnation that it has begun.
    pub incarnation: u64,
    /// Chosen at random.
    pub token: u64,
}

/// How the history of a list stands to that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// It is the same.
    Same,
    /// It has gone through a recovery since.
    Later,
    /// The other one has.
    Earlier,
    /// They have parted: each has gone through a recovery of which the other knows nothing.
    Parted,
}

impl Lineage {
    /// How the history that has gone through these recoveries stands to the one that has gone through those of `known`.
    pub(super) fn of(recoveries: &[Recovery], known: &[Recovery]) -> Self {
        let (last, last_known) = (recoveries.last(), known.last());
        if last == last_known {
            Self::Same
        } else if last_known.is_none_or(|last_known| recoveries.contains(last_known)) {
            Self::Later
        } else if last.is_none_or(|last| known.contains(last)) {
            Self::Earlier
        } else {
            Self::Parted
        }
    }
}

impl From<curator_state::Recovery> for Recovery {
    fn from(message: curator_state::Recovery) -> Self {
        Self { incarnation: message.incarnation, token: message.token }
    }
}

impl From<Recovery> for curator_state::Recovery {
    fn from(recovery: Recovery) -> Self {
        Self { incarnation: recovery.incarnation, token: recovery.token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_are_told_apart_by_their_recoveries() {
        let recoveries = |tokens: &[u64]| -> Vec<Recovery> {
            (2..).zip(tokens).map(|(incarnation, token)| Recovery { incarnation, token: *token }).collect()
        };
        use Lineage::{Earlier, Later, Parted, Same};
        for (own, known, expected) in [
            (&[][..], &[][..], Same),
            (&[7], &[], Later),
            (&[], &[7], Earlier),
            (&[7], &[7], Same),
            (&[7], &[8], Parted),
            (&[7, 9], &[7], Later),
            (&[7, 9], &[8], Parted),
            (&[7, 9], &[7, 8], Parted),
            (&[7], &[7, 8, 9], Earlier),
        ] {
            assert_eq!(Lineage::of(&recoveries(own), &recoveries(known)), expected, "{own:?}, {known:?}");
        }
        // The oldest of too many are forgotten.
        let many: Vec<u64> = (0..40).collect();
        let kept = &recoveries(&many)[40 - RECOVERIES_LIMIT..];
        assert_eq!(Lineage::of(kept, &recoveries(&many[..39])), Later);
        assert_eq!(Lineage::of(kept, &recoveries(&many[..3])), Parted);
    }
}
