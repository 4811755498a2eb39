//! The phases of enrolment and the ways between them.

use std::fmt;

/// How far a node has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The intent is durable and the data partition may be formatted. The only phase in which it may.
    Formattable,
    /// The data partition is formatted and holds what must never be lost.
    Formatted,
    /// The node is a member of its cluster.
    Enrolled,
    /// The cluster has removed the node. Final.
    Removed {
        /// Why, for people.
        reason: String,
    },
}

impl Phase {
    /// The phase after going from this one to `next`.
    pub(super) fn advance(&self, next: Self) -> Result<Self, TransitionError> {
        match (self, next) {
            (Self::Formattable, next @ (Self::Formattable | Self::Formatted | Self::Removed { .. }))
            | (Self::Formatted, next @ (Self::Formatted | Self::Enrolled | Self::Removed { .. }))
            | (Self::Enrolled, next @ (Self::Enrolled | Self::Removed { .. })) => Ok(next),
            (Self::Removed { reason }, Self::Removed { .. }) => Ok(Self::Removed { reason: reason.clone() }),
            (Self::Formattable, next @ Self::Enrolled)
            | (Self::Formatted, next @ Self::Formattable)
            | (Self::Enrolled, next @ (Self::Formattable | Self::Formatted))
            | (Self::Removed { .. }, next @ (Self::Formattable | Self::Formatted | Self::Enrolled)) => {
                Err(TransitionError { from: self.clone(), to: next })
            }
        }
    }

    pub(super) fn permit_format(&self) -> Result<FormatPermit, FormatForbidden> {
        match self {
            Self::Formattable => Ok(FormatPermit(())),
            Self::Formatted | Self::Enrolled | Self::Removed { .. } => Err(FormatForbidden { phase: self.clone() }),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Formattable => "formattable",
            Self::Formatted => "formatted",
            Self::Enrolled => "enrolled",
            Self::Removed { .. } => "removed",
        })
    }
}

/// Proof that a journal in phase `Formattable` was there: without it nothing formats.
#[derive(Debug)]
pub struct FormatPermit(());

/// Formatting was asked for in a phase in which it would destroy something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data partition is not formatted in phase {phase}: it may hold what must not be lost")]
pub struct FormatForbidden {
    /// The phase of the journal.
    pub phase: Phase,
}

/// A way that does not exist between two phases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the enrolment journal does not go from phase {from} to phase {to}")]
pub struct TransitionError {
    /// The phase that it is in.
    pub from: Phase,
    /// The phase that was asked for.
    pub to: Phase,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(reason: &str) -> Phase {
        Phase::Removed { reason: reason.to_owned() }
    }

    #[test]
    fn phases_lead_forwards_only() {
        let phases = [Phase::Formattable, Phase::Formatted, Phase::Enrolled, removed("again")];
        let allowed = [
            [true, true, false, true],
            [false, true, true, true],
            [false, false, true, true],
            [false, false, false, true],
        ];
        for (from, row) in phases.iter().zip(allowed) {
            for (to, allowed) in phases.iter().zip(row) {
                let result = from.advance(to.clone());
                assert_eq!(result.is_ok(), allowed, "{from} to {to}: {result:?}");
                if let Err(error) = result {
                    assert_eq!((&error.from, &error.to), (from, to));
                }
            }
        }
    }

    #[test]
    fn the_first_reason_of_a_removal_stays() {
        assert_eq!(removed("first").advance(removed("second")), Ok(removed("first")));
    }

    #[test]
    fn only_the_first_phase_permits_formatting() {
        assert!(Phase::Formattable.permit_format().is_ok());
        for phase in [Phase::Formatted, Phase::Enrolled, removed("so it was")] {
            assert_eq!(phase.permit_format().err(), Some(FormatForbidden { phase: phase.clone() }));
        }
    }
}
