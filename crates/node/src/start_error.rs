//! Why a node did not start at all.

use polis_consensus::EtcdBinaryError;
use polis_manager::Failure;
use polis_storage::RootError;
use polis_storage::DiskError;

/// Why a node did not start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The root directory cannot be used.
    #[error("the root directory cannot be used")]
    Root(#[source] RootError),
    /// There is no etcd that can be used.
    #[error("there is no etcd that this node can run")]
    Etcd(#[source] EtcdBinaryError),
    /// The node could do nothing useful.
    #[error("the node cannot start")]
    Failure(#[source] Failure),
    /// The root directory could not be prepared.
    #[error("the root directory could not be prepared")]
    Prepare(#[source] DiskError),
    /// The system gives no event loop.
    #[error("the event loop could not be started")]
    Runtime(#[source] std::io::Error),
}

impl StartError {
    /// Exit code of the process: 2 for a missing prerequisite, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Etcd(EtcdBinaryError::Missing { .. }) => 2,
            Self::Root(_) | Self::Etcd(_) | Self::Failure(_) | Self::Prepare(_) | Self::Runtime(_) => 1,
        }
    }
}
