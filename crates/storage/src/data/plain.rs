//! [`PlainData`]: the data partition as a directory, protected by nothing but permissions.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::{DataError, DataPartition, Description, Found, KeyOperation, Progress, ProgressSender, UnlockKeys};
use crate::disk::{DIRECTORY_MODE, Disk, DiskError, Metadata};
use crate::durable;
use crate::journal::{FormatPermit, StorageSecurity};
use crate::layout::{Data, Layout};
use crate::path::DiskPath;
use crate::placement::Directory;
use crate::records::PartitionMarker;
use crate::stored::LoadError;

/// Name of this backend.
const BACKEND: &str = "plain";
/// A directory that `mkfs` and `fsck` make in each ext file system: in the way of nobody.
const LOST_AND_FOUND: &str = "lost+found";

/// The data partition as a plain directory. Insecure, and says so.
#[derive(Clone)]
pub struct PlainData {
    disk: Arc<dyn Disk>,
    data: Data,
}

impl PlainData {
    /// The directory `data` on this disk.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        let Layout { data, .. } = Layout::new(Arc::clone(&disk));
        Self { disk, data }
    }

    fn path(&self) -> PathBuf {
        self.data.directory.full_path()
    }

    /// The directories of the tree, parents first.
    fn directories(&self) -> [&Directory; 4] {
        [&self.data.directory, &self.data.etcd.directory, &self.data.etcd.data, &self.data.node.directory]
    }

    /// Runs blocking work on a thread for it.
    #[expect(
        clippy::disallowed_methods,
        reason = "storage knows nothing of runnables; the work is waited for here, and its panic is passed on"
    )]
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, DataError> + Send + 'static,
    ) -> Result<T, DataError> {
        let this = self.clone();
        match tokio::task::spawn_blocking(move || work(&this)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                // A panic stays what it is: the death of the runnable that asked for the work.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(DataError::Stopped { path: self.path() }),
            },
        }
    }

    fn marker(&self) -> Result<Option<PartitionMarker>, DataError> {
        self.data.partition.load().map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: LoadError) -> DataError {
        DataError::Marker { path: self.path(), source }
    }

    /// The first thing in the unformatted directory that no format of ours has made.
    fn foreign(&self) -> Result<Option<DiskPath>, DiskError> {
        let directories = self.directories();
        for directory in directories {
            let names = match self.disk.list(directory.path()) {
                Err(error) if error.is_absent() => continue,
                names => names?,
            };
            for name in names {
                let path = directory.path().child_unchecked(&name);
                let known = match self.disk.metadata(&path)? {
                    Some(Metadata::File { .. }) => durable::is_temporary(&name),
                    Some(Metadata::Directory { .. }) => {
                        directories.iter().any(|directory| *directory.path() == path)
                            || (directory.path() == self.data.directory.path() && name == LOST_AND_FOUND)
                    }
                    Some(Metadata::Other) => false,
                    None => true,
                };
                if !known {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }

    fn look(&self) -> Result<Found, DataError> {
        if let Some(marker) = self.data.partition.peek().map_err(|source| self.unreadable(source))? {
            return Ok(Found::Formatted { owner: Some(marker.node_id) });
        }
        if let Some(path) = self.foreign()? {
            return Ok(Found::Foreign { path: self.disk.full_path(&path) });
        }
        Ok(if self.data.directory.exists()? { Found::HalfFormatted } else { Found::Nothing })
    }

    /// Fails unless the marker is of this node and backend.
    fn check_owner(&self, marker: PartitionMarker, owner: &str) -> Result<(), DataError> {
        let PartitionMarker { node_id, backend } = marker;
        if node_id != owner {
            return Err(DataError::OtherNode { path: self.path(), found: node_id, expected: owner.to_owned() });
        }
        if backend != BACKEND {
            return Err(DataError::OtherBackend { path: self.path(), found: backend, expected: BACKEND });
        }
        Ok(())
    }

    fn format_now(&self, owner: &str) -> Result<(), DataError> {
        if let Some(marker) = self.marker()? {
            self.check_owner(marker, owner)?;
            return self.sweep();
        }
        if let Some(found) = self.foreign()? {
            let found = self.disk.full_path(&found);
            return Err(DataError::ForeignContent { directory: self.path(), found });
        }
        self.data.directory.create("data/format")?;
        let siblings = [self.data.etcd.directory.path(), self.data.node.directory.path()];
        let names: Vec<&str> = siblings.into_iter().filter_map(DiskPath::name).collect();
        let directory = self.data.directory.path();
        durable::create_siblings(&*self.disk, "data/format/directories", directory, &names, DIRECTORY_MODE)?;
        self.data.etcd.data.create("data/format/etcd/data")?;
        self.sweep()?;
        let marker = PartitionMarker { node_id: owner.to_owned(), backend: BACKEND.to_owned() };
        let written = self.data.partition.store(&marker, "data/format/partition");
        written.map_err(|source| DataError::Finish { path: self.path(), source })
    }

    fn open_now(&self, owner: &str) -> Result<(), DataError> {
        let marker = self.marker()?.ok_or_else(|| DataError::NotFormatted { path: self.path() })?;
        self.check_owner(marker, owner)?;
        self.sweep()
    }

    /// Removes stale temporaries from the directories that durable writes go to. What is in etcd's own is etcd's.
    fn sweep(&self) -> Result<(), DataError> {
        for directory in [&self.data.directory, &self.data.etcd.directory, &self.data.node.directory] {
            for path in directory.sweep()? {
                tracing::info!("removed {}: a write that was interrupted had left it", path.display());
            }
        }
        Ok(())
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
        self.blocking(Self::look).await
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
        self.blocking(move |this| this.format_now(&owner)).await
    }

    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError> {
        if keys.is_some() {
            return Self::not_supported(KeyOperation::Unlock);
        }
        report(progress, "opening the data directory");
        let owner = owner.to_owned();
        self.blocking(move |this| this.open_now(&owner)).await
    }

    async fn test_open(&self, _keys: &UnlockKeys) -> Result<bool, DataError> {
        Self::not_supported(KeyOperation::TestOpen)
    }

    async fn add_key(&self, _existing: &UnlockKeys, _new: &UnlockKeys) -> Result<(), DataError> {
        Self::not_supported(KeyOperation::AddKey)
    }

    async fn remove_key(&self, _old: &UnlockKeys, _remaining: &UnlockKeys) -> Result<(), DataError> {
        Self::not_supported(KeyOperation::RemoveKey)
    }

    async fn lost(&self) -> String {
        std::future::pending().await
    }

    async fn close(&self) -> Result<(), DataError> {
        Ok(())
    }
}

fn report(progress: &ProgressSender, step: &'static str) {
    progress.send_replace(Progress { step, done: 0, total: None });
}
