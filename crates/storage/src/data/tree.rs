//! [`DataTree`]: what is below the data directory, the same for every backend.
//!
//! Foreign content, directories, the marker, whose it is, stale temporaries: all that is left to a backend is where the
//! directory comes from, and what protects it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{DataError, Found};
use crate::disk::{DIRECTORY_MODE, Disk, DiskError, Metadata};
use crate::durable;
use crate::layout::{Data, Layout};
use crate::path::DiskPath;
use crate::placement::Directory;
use crate::records::PartitionMarker;
use crate::stored::LoadError;

/// A directory that `mkfs` and `fsck` make in each ext file system: in the way of nobody.
const LOST_AND_FOUND: &str = "lost+found";

/// The tree `data` on a disk. Its methods block.
#[derive(Clone)]
pub struct DataTree {
    disk: Arc<dyn Disk>,
    data: Data,
    backend: &'static str,
}

impl DataTree {
    /// The directory `data` on this disk, for the backend of this name.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, backend: &'static str) -> Self {
        let Layout { data, .. } = Layout::new(Arc::clone(&disk));
        Self { disk, data, backend }
    }

    /// Full path of the directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.data.directory.full_path()
    }

    /// Looks at what is there and changes nothing.
    ///
    /// # Errors
    ///
    /// When the disk fails or there is a marker that cannot be read.
    pub fn look(&self) -> Result<Found, DataError> {
        if let Some(marker) = self.data.partition.peek().map_err(|source| self.unreadable(source))? {
            return Ok(Found::Formatted { owner: Some(marker.node_id) });
        }
        if let Some(path) = self.foreign()? {
            return Ok(Found::Foreign { path: self.disk.full_path(&path) });
        }
        Ok(if self.data.directory.exists()? { Found::HalfFormatted } else { Found::Nothing })
    }

    /// Makes the tree for node `owner`, the marker last. What is finished stays, what is half done is finished, and
    /// nothing of anyone else is touched. The directory itself is made too, unless it is there.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    pub fn format(&self, owner: &str) -> Result<(), DataError> {
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
        let marker = PartitionMarker { node_id: owner.to_owned(), backend: self.backend.to_owned() };
        let written = self.data.partition.store(&marker, "data/format/partition");
        written.map_err(|source| DataError::Finish { path: self.path(), source })
    }

    /// Fails unless the tree is there and belongs to `owner`, and sweeps stale temporaries.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    pub fn open(&self, owner: &str) -> Result<(), DataError> {
        let marker = self.marker()?.ok_or_else(|| DataError::NotFormatted { path: self.path() })?;
        self.check_owner(marker, owner)?;
        self.sweep()
    }

    /// Fails unless `marker` is of this node and backend.
    ///
    /// # Errors
    ///
    /// [`DataError::OtherNode`] or [`DataError::OtherBackend`].
    pub fn check_owner(&self, marker: PartitionMarker, owner: &str) -> Result<(), DataError> {
        let PartitionMarker { node_id, backend } = marker;
        if node_id != owner {
            return Err(DataError::OtherNode { path: self.path(), found: node_id, expected: owner.to_owned() });
        }
        if backend != self.backend {
            return Err(DataError::OtherBackend { path: self.path(), found: backend, expected: self.backend });
        }
        Ok(())
    }

    fn marker(&self) -> Result<Option<PartitionMarker>, DataError> {
        self.data.partition.load().map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: LoadError) -> DataError {
        DataError::Marker { path: self.path(), source }
    }

    /// The directories of the tree, parents first.
    fn directories(&self) -> [&Directory; 4] {
        [&self.data.directory, &self.data.etcd.directory, &self.data.etcd.data, &self.data.node.directory]
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

    /// Removes stale temporaries from the directories that durable writes go to. What is in etcd's own is etcd's.
    fn sweep(&self) -> Result<(), DataError> {
        let Data { directory, log, etcd, node, .. } = &self.data;
        for directory in [directory, log, &etcd.directory, &node.directory] {
            for path in directory.sweep()? {
                tracing::info!("removed {}: a write that was interrupted had left it", path.display());
            }
        }
        Ok(())
    }
}

/// Runs blocking work of a backend on a thread for it; `path` is for the message when the runtime ends first.
///
/// # Errors
///
/// Those of the work, and [`DataError::Stopped`].
#[expect(
    clippy::disallowed_methods,
    reason = "storage knows nothing of runnables; the work is waited for here, and its panic is passed on"
)]
pub async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, DataError> + Send + 'static,
) -> Result<T, DataError> {
    // Lines that the work logs belong to whoever asked for it.
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            // A panic stays what it is: the death of the runnable that asked for the work.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(DataError::Stopped { path: path.to_owned() }),
        },
    }
}
