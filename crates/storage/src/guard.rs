//! [`GuardedDisk`]: while the data partition is not open, nothing below `data` is there for anybody.
//!
//! The mount point of an encrypted partition is an ordinary directory as long as nothing is mounted. What is written
//! there is in the clear, and hidden once the partition is mounted; what is read there is absent, though it exists. So
//! both fail, in a way that the opening of the partition cures.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::{Action, Disk, DiskError, Metadata};
use crate::path::DiskPath;

/// The directory that is guarded: [`crate::Layout`] places it there.
const DATA: &str = "data";

/// Whether the data partition may be used. Clones are one gate: its backend turns it, and a [`GuardedDisk`] obeys it.
#[derive(Clone, Debug)]
pub struct DataGate(Arc<AtomicBool>);

impl DataGate {
    /// A gate that is open.
    #[must_use]
    pub fn open() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A gate that is closed.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Opens it.
    pub fn set_open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Closes it: from now on nothing is read or written. What is under way ends as it may.
    pub fn set_closed(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The data partition is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data partition is not open")]
pub struct DataClosed;

/// A disk whose directory `data` is there only while the gate is open. All else passes.
#[derive(Clone)]
pub struct GuardedDisk {
    disk: Arc<dyn Disk>,
    gate: DataGate,
    data: DiskPath,
}

impl GuardedDisk {
    /// Guards `disk`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, gate: DataGate) -> Self {
        Self { disk, gate, data: DiskPath::root().child_unchecked(DATA) }
    }

    /// The gate.
    #[must_use]
    pub const fn gate(&self) -> &DataGate {
        &self.gate
    }

    fn pass(&self, action: Action, path: &DiskPath) -> Result<&dyn Disk, DiskError> {
        if !path.is_within(&self.data) || self.gate.is_open() {
            return Ok(&*self.disk);
        }
        Err(DiskError { action, path: self.disk.full_path(path), source: io::Error::other(DataClosed) })
    }
}

impl Disk for GuardedDisk {
    fn full_path(&self, path: &DiskPath) -> PathBuf {
        self.disk.full_path(path)
    }

    fn read(&self, path: &DiskPath, limit: usize) -> Result<Vec<u8>, DiskError> {
        self.pass(Action::Read, path)?.read(path, limit)
    }

    fn metadata(&self, path: &DiskPath) -> Result<Option<Metadata>, DiskError> {
        self.pass(Action::Examine, path)?.metadata(path)
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>, DiskError> {
        self.pass(Action::List, path)?.list(path)
    }

    fn create_directory(&self, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
        self.pass(Action::CreateDirectory, path)?.create_directory(path, mode)
    }

    fn create_exclusive(&self, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError> {
        self.pass(Action::CreateFile, path)?.create_exclusive(path, mode, bytes)
    }

    fn sync_file(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        self.pass(Action::SyncFile, path)?.sync_file(site, path)
    }

    fn sync_directory(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        self.pass(Action::SyncDirectory, path)?.sync_directory(site, path)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        self.pass(Action::Rename, from)?;
        self.pass(Action::Rename, to)?.rename(from, to)
    }

    fn remove_file(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.pass(Action::RemoveFile, path)?.remove_file(path)
    }

    fn clear_directory(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.pass(Action::ClearDirectory, path)?.clear_directory(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable;
    use crate::simulation::SimulatedDisk;

    fn path(text: &str) -> DiskPath {
        DiskPath::parse(text).unwrap()
    }

    /// Every operation at a path, with what it says.
    fn all(disk: &dyn Disk, path: &DiskPath) -> Vec<(Action, Result<(), DiskError>)> {
        let other = path.parent().unwrap().child("other").unwrap();
        vec![
            (Action::Read, disk.read(path, 1).map(drop)),
            (Action::Examine, disk.metadata(path).map(drop)),
            (Action::List, disk.list(path).map(drop)),
            (Action::CreateDirectory, disk.create_directory(path, 0o700)),
            (Action::CreateFile, disk.create_exclusive(path, 0o600, b"")),
            (Action::SyncFile, disk.sync_file("test", path)),
            (Action::SyncDirectory, disk.sync_directory("test", path)),
            (Action::Rename, disk.rename(path, &other)),
            (Action::RemoveFile, disk.remove_file(path)),
            (Action::ClearDirectory, disk.clear_directory(path)),
        ]
    }

    #[test]
    fn below_data_nothing_is_there_until_the_gate_is_open() {
        let inner = Arc::new(SimulatedDisk::default());
        for directory in ["data", "data/etcd", "esp", "database"] {
            inner.create_directory(&path(directory), 0o700).unwrap();
        }
        inner.create_exclusive(&path("data/file"), 0o600, b"x").unwrap();
        let gate = DataGate::closed();
        let disk = GuardedDisk::new(inner.clone(), gate.clone());
        for guarded in ["data/file", "data/etcd", "data/new"] {
            for (action, result) in all(&disk, &path(guarded)) {
                let error = result.expect_err(guarded);
                assert!(error.is_data_closed() && error.action == action, "{guarded}: {error:?}");
                assert!(!error.is_absent(), "what cannot be read is not absent");
            }
        }
        assert!(disk.metadata(&path("data")).unwrap_err().is_data_closed());
        assert_eq!(inner.list(&path("data")).unwrap(), ["etcd", "file"], "nothing was changed");
        for free in ["", "esp", "database"] {
            disk.list(&path(free)).unwrap();
        }
        durable::write(&disk, "test", &path("esp/file"), 0o600, b"x").unwrap();

        gate.set_open();
        assert_eq!(disk.read(&path("data/file"), 1).unwrap(), b"x");
        durable::write(&disk, "test", &path("data/etcd/file"), 0o600, b"x").unwrap();
        gate.set_closed();
        assert!(disk.read(&path("data/file"), 1).unwrap_err().is_data_closed());
    }
}
