//! Why a node did not start, or ended.

use std::sync::Arc;

use polis_consensus::EtcdBinaryError;
use polis_manager::Failure;
use polis_storage::RootError;

/// Why a node did not start, or ended without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The root directory cannot be used; nothing was changed.
    #[error("the node did not start: its root directory cannot be used")]
    Root(#[source] RootError),
    /// There is no etcd that can be used; nothing was changed.
    #[error("the node did not start: there is no etcd that it can run")]
    Etcd(#[source] EtcdBinaryError),
    /// The node could do nothing useful; nothing was changed.
    #[error("the node did not start")]
    Refused(#[source] Failure),
    /// The system gives no event loop; nothing was changed.
    #[error("the node did not start: the system gives it no event loop")]
    Runtime(#[source] std::io::Error),
    /// The system delivers no signals, so that the node could not be stopped in order; nothing was changed.
    #[error("the node did not start: the system delivers no signals to it")]
    Signals(#[source] std::io::Error),
    /// The node stopped because it was to start again, and did not.
    #[error("the node was to start again, and stopped, but the program could not be started anew")]
    Restart(#[source] std::io::Error),
    /// The node ran and came to something that only a human can decide.
    #[error("the node has failed")]
    Failed(#[source] Arc<Failure>),
}

impl RunError {
    /// Whether something is missing that can be installed: exit code 2 in the command contract, where all else is 1.
    #[must_use]
    pub const fn is_missing_prerequisite(&self) -> bool {
        match self {
            Self::Etcd(EtcdBinaryError::Missing { .. }) => true,
            Self::Refused(failure) => failure.is_missing_prerequisite(),
            Self::Root(_)
            | Self::Etcd(_)
            | Self::Runtime(_)
            | Self::Signals(_)
            | Self::Restart(_)
            | Self::Failed(_) => false,
        }
    }

    /// What to do next, where the reason itself does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused(failure) => failure.hint(),
            Self::Failed(failure) => failure.hint(),
            Self::Root(RootError::Disk(_)) => {
                Some("give a root that this user can make and write to, on a disk that works")
            }
            Self::Root(
                RootError::Absent { .. }
                | RootError::NotADirectory { .. }
                | RootError::ReadOnly { .. }
                | RootError::OtherOwner { .. }
                | RootError::InUse { .. }
                | RootError::Name { .. },
            ) => None,
            Self::Restart(_) => Some("start it again: `polis node run` with the same options"),
            Self::Etcd(_) | Self::Runtime(_) | Self::Signals(_) => None,
        }
    }
}
