//! Why the cluster's state was not read or changed.

use polis_consensus::KvError;
use polis_supervisor::{BoxError, with_causes};
use tonic::Status;

/// The cluster's state was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another node leads by now, so nothing was changed. Whoever asked must ask the new leader.
    #[error("this node no longer leads the cluster; nothing was changed")]
    LostLeadership,
    /// An expectation of the transaction did not hold: somebody else changed the same at the same time. Nothing was
    /// changed; read again and decide anew.
    #[error("the state was changed by another request at the same time; nothing was changed by this one")]
    Conflict,
    /// etcd did not do it.
    #[error("the cluster's state cannot be reached")]
    Unavailable(#[source] KvError),
    /// etcd did not say whether it did it. Read before trying again.
    #[error("it is not known whether the change was made")]
    OutcomeUnknown(#[source] KvError),
    /// What is stored cannot be used.
    #[error("the cluster's state is damaged at {key}")]
    Damaged {
        /// The whole key.
        key: String,
        /// What is wrong with its value.
        #[source]
        source: BoxError,
    },
}

impl StateError {
    /// What a failed read means: nothing was changed in any case.
    pub(crate) fn of_read(error: KvError) -> Self {
        match error {
            KvError::PreconditionFailed { .. } => Self::Conflict,
            KvError::OutcomeUnknown { source } => Self::Unavailable(KvError::Unavailable { source }),
            KvError::Unavailable { .. }
            | KvError::NoLeader { .. }
            | KvError::NoSpace { .. }
            | KvError::LeaseNotFound
            | KvError::Refused { .. } => Self::Unavailable(error),
        }
    }

    pub(crate) fn damaged(key: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Damaged { key: key.into(), source: source.into() }
    }
}

impl From<StateError> for Status {
    /// As a client sees it (metropolis.md, G.2): all but damage may pass, and is to be tried again, perhaps elsewhere.
    fn from(error: StateError) -> Self {
        let message = with_causes(&error);
        match error {
            StateError::LostLeadership
            | StateError::Conflict
            | StateError::Unavailable(_)
            | StateError::OutcomeUnknown(_) => Self::unavailable(message),
            StateError::Damaged { .. } => Self::internal(message),
        }
    }
}
