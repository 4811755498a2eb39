//! The states of the Manager and the table of transitions between them.

use std::fmt;

/// Where a node stands on its way from New to Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Has not decided yet what to do.
    New,
    /// Makes a cluster of its own.
    CreatingCluster,
    /// Asks a cluster for admission.
    Registering,
    /// Comes back to the cluster that it is a node of.
    Joining,
    /// Identity held, data mounted, and since this start a write through its own consensus member acknowledged, or, on a node
    /// without one, a heartbeat answered by the leader.
    Running,
    /// Has ended, for a reason that is given. Final.
    Failed,
}

/// Every transition that may happen. Whatever is not here is an error in the program and ends in Failed.
pub const TRANSITIONS: [(State, State); 11] = [
    (State::New, State::CreatingCluster),
    (State::New, State::Registering),
    (State::New, State::Joining),
    (State::New, State::Failed),
    (State::CreatingCluster, State::Running),
    (State::CreatingCluster, State::Failed),
    (State::Registering, State::Running),
    (State::Registering, State::Failed),
    (State::Joining, State::Running),
    (State::Joining, State::Failed),
    // The only way out of Running: the cluster has removed the node.
    (State::Running, State::Failed),
];

impl State {
    /// All states, in the order of a node's life.
    pub const ALL: [Self; 6] =
        [Self::New, Self::CreatingCluster, Self::Registering, Self::Joining, Self::Running, Self::Failed];

    /// Whether [`TRANSITIONS`] has the way from here to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        TRANSITIONS.contains(&(self, next))
    }

    /// Whether whoever waits for the end of enrolment is told now.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        match self {
            Self::Running | Self::Failed => true,
            Self::New | Self::CreatingCluster | Self::Registering | Self::Joining => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::New => "New",
            Self::CreatingCluster => "CreatingCluster",
            Self::Registering => "Registering",
            Self::Joining => "Joining",
            Self::Running => "Running",
            Self::Failed => "Failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_way_back_and_no_way_out_of_failed() {
        for (from, to) in TRANSITIONS {
            let position = |state| State::ALL.iter().position(|known| *known == state).unwrap();
            assert!(position(from) < position(to), "{from} to {to}");
            assert_ne!(from, State::Failed);
        }
    }

    #[test]
    fn every_state_but_failed_can_fail() {
        for state in State::ALL {
            assert_eq!(state.may_become(State::Failed), state != State::Failed, "{state}");
        }
    }
}
