//! What the recovery key can do here, as the node does it.

use async_trait::async_trait;
use polis_secret::Secret32;
use polis_supervisor::BoxError;

/// What an operator with the recovery key sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryAnswer {
    /// The key of the content of the blob that was offered.
    pub content_key: Secret32,
    /// SHA-256 of that blob.
    pub blob_sha256: [u8; 32],
}

/// Opens the node with what the recovery key gives. Calls of [`Recovery::recover`] do not overlap, and none is dropped before it has
/// returned, unless the server stops: not even when the operator goes away.
#[async_trait]
pub trait Recovery: Send + Sync + 'static {
    /// The recovery blob that the node offers to anybody, serialized. From memory: anybody may ask, and often.
    ///
    /// # Errors
    ///
    /// Why there is none, for people.
    async fn offer(&self) -> Result<Vec<u8>, String>;

    /// Opens the data. Returns what was done, for people.
    ///
    /// # Errors
    ///
    /// When nothing was changed.
    async fn recover(&self, answer: RecoveryAnswer) -> Result<String, RecoverError>;
}

/// Why the recovery key has not opened the node.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// There is nothing to recover, or nothing to recover it with.
    #[error("{0}")]
    NothingOffered(String),
    /// The node has another blob by now.
    #[error("the node offers another recovery blob by now; ask it again")]
    OtherBlob,
    /// The key opens nothing here.
    #[error("{0}")]
    WrongKey(String),
    /// The key is right, and something else went wrong.
    #[error("the node could not be opened")]
    Failed(#[source] BoxError),
}
