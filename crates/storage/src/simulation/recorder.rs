//! [`RecordingDisk`]: any disk, with a recording of what is done to it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::image::Image;
use super::operation::{Operation, SyncSite, SyncTarget};
use super::recording::Recording;
use crate::disk::{Disk, DiskError, Metadata};
use crate::path::DiskPath;

/// Passes everything on to another disk and records what succeeded. A change that failed half-way is not recorded: this
/// is for disks that work.
pub struct RecordingDisk {
    inner: Arc<dyn Disk>,
    recording: Mutex<Recording>,
}

impl RecordingDisk {
    /// Records what is done to `inner`, on which there is `initial` now, durably. The directories `fat` behave like FAT
    /// in the recording.
    #[must_use]
    pub fn new(inner: Arc<dyn Disk>, initial: Image, fat: Vec<DiskPath>) -> Self {
        Self { inner, recording: Mutex::new(Recording { initial, fat, operations: Vec::new() }) }
    }

    /// What was done so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many changes were made so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).operations.len()
    }

    /// Makes a change and records it, both under the lock, so that the order in the recording is the true one.
    fn change(
        &self,
        operation: Operation,
        change: impl FnOnce(&dyn Disk) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        change(&*self.inner)?;
        recording.operations.push(operation);
        Ok(())
    }
}

impl Disk for RecordingDisk {
    fn full_path(&self, path: &DiskPath) -> PathBuf {
        self.inner.full_path(path)
    }

    fn read(&self, path: &DiskPath, limit: usize) -> Result<Vec<u8>, DiskError> {
        self.inner.read(path, limit)
    }

    fn metadata(&self, path: &DiskPath) -> Result<Option<Metadata>, DiskError> {
        self.inner.metadata(path)
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>, DiskError> {
        self.inner.list(path)
    }

    fn create_directory(&self, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
        let operation = Operation::CreateDirectory { path: path.clone(), mode };
        self.change(operation, |inner| inner.create_directory(path, mode))
    }

    fn create_exclusive(&self, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError> {
        let operation = Operation::CreateFile { path: path.clone(), mode, content: bytes.to_vec() };
        self.change(operation, |inner| inner.create_exclusive(path, mode, bytes))
    }

    fn sync_file(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        let sync = SyncSite { site, target: SyncTarget::File };
        self.change(Operation::Sync { site: sync, path: path.clone() }, |inner| inner.sync_file(site, path))
    }

    fn sync_directory(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        let sync = SyncSite { site, target: SyncTarget::Directory };
        self.change(Operation::Sync { site: sync, path: path.clone() }, |inner| inner.sync_directory(site, path))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        let operation = Operation::Rename { from: from.clone(), to: to.clone() };
        self.change(operation, |inner| inner.rename(from, to))
    }

    fn remove_file(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.change(Operation::RemoveFile { path: path.clone() }, |inner| inner.remove_file(path))
    }

    fn clear_directory(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.change(Operation::ClearDirectory { path: path.clone() }, |inner| inner.clear_directory(path))
    }
}
