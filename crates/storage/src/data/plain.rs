//! [`PlainData`]: the data partition as a directory, protected by nothing but permissions.

use std::sync::Arc;

use async_trait::async_trait;

use super::tree::{DataTree, blocking};
use super::{DataError, DataPartition, Description, Found, KeyOperation, ProgressSender, UnlockKeys, report};
use crate::disk::Disk;
use crate::guard::DataGate;
use crate::journal::{FormatPermit, StorageSecurity};

/// Name of this backend.
const BACKEND: &str = "plain";

/// The data partition as a plain directory. Insecure, and says so.
#[derive(Clone)]
pub struct PlainData {
    tree: DataTree,
    gate: DataGate,
}

impl PlainData {
    /// The directory `data` on this disk.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self::with_gate(disk, DataGate::open())
    }

    /// The directory `data` on this disk. The gate is open once this backend was opened.
    #[must_use]
    pub fn with_gate(disk: Arc<dyn Disk>, gate: DataGate) -> Self {
        Self { tree: DataTree::new(disk, BACKEND), gate }
    }

    /// Runs blocking work on a thread for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&DataTree) -> Result<T, DataError> + Send + 'static,
    ) -> Result<T, DataError> {
        let tree = self.tree.clone();
        blocking(&self.tree.path(), move || work(&tree)).await
    }

    fn not_supported<T>(operation: KeyOperation) -> Result<T, DataError> {
        Err(DataError::NotSupported { operation, backend: BACKEND })
    }
}

#[async_trait]
impl DataPartition for PlainData {
    fn describe(&self) -> Description {
        Description {
            backend: BACKEND,
            storage_security: StorageSecurity::Insecure,
            warning: Some(
                "data is stored without encryption: whoever can read this disk can read all of it, and take over the \
                 identity of the node",
            ),
        }
    }

    async fn prepare(&self, progress: &ProgressSender) -> Result<Found, DataError> {
        report(progress, "looking at the data directory");
        self.blocking(DataTree::look).await
    }

    async fn format(
        &self,
        _permit: FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        if keys.is_some() {
            return Self::not_supported(KeyOperation::Unlock);
        }
        report(progress, "formatting the data directory");
        let owner = owner.to_owned();
        self.blocking(move |tree| tree.format(&owner)).await
    }

    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError> {
        if keys.is_some() {
            return Self::not_supported(KeyOperation::Unlock);
        }
        report(progress, "opening the data directory");
        let owner = owner.to_owned();
        self.blocking(move |tree| tree.open(&owner)).await?;
        self.gate.set_open();
        Ok(())
    }

    async fn test_open(&self, _keys: &UnlockKeys) -> Result<bool, DataError> {
        Self::not_supported(KeyOperation::TestOpen)
    }

    async fn add_key(&self, _existing: &UnlockKeys, _new: &UnlockKeys) -> Result<(), DataError> {
        Self::not_supported(KeyOperation::AddKey)
    }

    async fn count_keys(&self) -> Result<usize, DataError> {
        Self::not_supported(KeyOperation::CountKeys)
    }

    async fn remove_others(&self, _remaining: &UnlockKeys) -> Result<(), DataError> {
        Self::not_supported(KeyOperation::RemoveOthers)
    }

    async fn lost(&self) -> String {
        std::future::pending().await
    }

    async fn close(&self) -> Result<(), DataError> {
        Ok(())
    }
}
