//! What the cluster's state needs from the store it lies in.

use async_trait::async_trait;

use polis_supervisor::BoxError;

/// A linearizable store of keys and values. etcd in a node, something simpler in tests of what stands on top of it.
#[async_trait]
pub trait ClusterStore: Send + Sync {
    /// Creates all `entries` at once, provided that none of their keys exists.
    ///
    /// # Errors
    ///
    /// When the store gives no answer; then it is not known whether it took the entries.
    async fn create(&self, site: &'static str, entries: Vec<Entry>) -> Result<Creation, StoreError>;

    /// Puts a value, whether or not its key exists.
    ///
    /// # Errors
    ///
    /// When the store gives no answer; then it is not known whether it took the value.
    async fn put(&self, site: &'static str, entry: Entry) -> Result<(), StoreError>;

    /// Reads a value, linearizably.
    ///
    /// # Errors
    ///
    /// When the store gives no answer.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;
}

/// A key and its value. Values hold keys of authorities, so there is no `Debug`.
#[derive(Clone)]
pub struct Entry {
    /// The whole key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

/// Outcome of [`ClusterStore::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// All entries were created.
    Created,
    /// At least one of the keys exists; nothing was changed.
    Exists,
}

/// The store gave no answer. Every operation may be repeated.
#[derive(Debug, thiserror::Error)]
#[error("the cluster's store gave no answer to {operation}")]
pub struct StoreError {
    /// What was asked.
    pub operation: &'static str,
    /// Why there was no answer.
    #[source]
    pub source: BoxError,
}
