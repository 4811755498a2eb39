//! Points in the history of the cluster's membership.

use std::fmt;

use polis_proto::curator_state;

/// A point in the history of the cluster's membership; ordered by incarnation, then epoch. It is never a revision of etcd,
/// which a restore can set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Raised by recovery and restore.
    pub incarnation: u64,
    /// Raised by each change of members.
    pub epoch: u64,
}

impl Epoch {
    /// Where the history of every cluster begins.
    pub const FIRST: Self = Self { incarnation: 1, epoch: 1 };

    /// What follows a change of members.
    ///
    /// # Panics
    ///
    /// After more changes than any cluster lives to see.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { incarnation: self.incarnation, epoch: self.epoch.checked_add(1).expect("a cluster has an end") }
    }
}

impl From<curator_state::Epoch> for Epoch {
    fn from(message: curator_state::Epoch) -> Self {
        Self { incarnation: message.incarnation, epoch: message.epoch }
    }
}

impl From<Epoch> for curator_state::Epoch {
    fn from(epoch: Epoch) -> Self {
        Self { incarnation: epoch.incarnation, epoch: epoch.epoch }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.incarnation, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_ordered_by_incarnation_first() {
        let [old, next, restored] = [(1, 9), (1, 10), (2, 1)].map(|(incarnation, epoch)| Epoch { incarnation, epoch });
        assert!(Epoch::FIRST < old && old < next && next < restored);
        assert_eq!(old.next(), next);
        assert_eq!(old.to_string(), "1.9");
        assert_eq!(Epoch::from(curator_state::Epoch::from(restored)), restored);
    }
}
