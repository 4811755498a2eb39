//! [`SimulatedDisk`]: a disk in memory that records, and fails when it is told to.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::image::Image;
use super::model::Model;
use super::operation::{Operation, SyncSite, SyncTarget};
use super::recording::Recording;
use crate::disk::{Action, Disk, DiskError, LIST_LIMIT, Metadata, too_long};
use crate::path::DiskPath;

/// Where a simulated disk seems to be.
const ROOT: &str = "/simulated";

/// A disk in memory.
pub struct SimulatedDisk {
    state: Mutex<State>,
}

struct State {
    model: Model,
    recording: Recording,
    failure: Option<Planned>,
    /// Files in bad sectors.
    bad: BTreeSet<DiskPath>,
}

/// A failure that is to come.
struct Planned {
    failure: Failure,
    /// Operations that still succeed.
    after: usize,
    /// Whether all later ones fail too, until [`SimulatedDisk::cure`].
    lasting: bool,
}

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ENOSPC. Of a file, a first part is written.
    Full,
    /// EACCES.
    Forbidden,
    /// EIO.
    Medium,
}

impl Failure {
    fn cause(self) -> io::Error {
        match self {
            Self::Full => Errno::NOSPC,
            Self::Forbidden => Errno::ACCESS,
            Self::Medium => Errno::IO,
        }
        .into()
    }
}

/// An empty disk without FAT.
impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new(Image::default(), Vec::new())
    }
}

impl SimulatedDisk {
    /// A disk with this on it, durably. The directories `fat` behave like FAT, with all below them.
    #[must_use]
    pub fn new(initial: Image, fat: Vec<DiskPath>) -> Self {
        let model = Model::new(&initial, &fat);
        let recording = Recording { initial, fat, operations: Vec::new() };
        Self { state: Mutex::new(State { model, recording, failure: None, bad: BTreeSet::new() }) }
    }

    /// What a running process sees.
    #[must_use]
    pub fn image(&self) -> Image {
        self.state().model.image()
    }

    /// What was done so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.state().recording.clone()
    }

    /// How many changes were made so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.state().recording.operations.len()
    }

    /// Lets the next `after` changes succeed and the one after them fail.
    pub fn fail_once(&self, after: usize, failure: Failure) {
        self.state().failure = Some(Planned { failure, after, lasting: false });
    }

    /// Lets the next `after` changes succeed and all after them fail, until [`SimulatedDisk::cure`].
    pub fn fail_from(&self, after: usize, failure: Failure) {
        self.state().failure = Some(Planned { failure, after, lasting: true });
    }

    /// Lets every read of this path fail with EIO, until [`SimulatedDisk::cure`].
    pub fn damage_medium(&self, path: &DiskPath) {
        self.state().bad.insert(path.clone());
    }

    /// Ends all failures.
    pub fn cure(&self) {
        let mut state = self.state();
        state.failure = None;
        state.bad.clear();
    }

    /// The state is consistent between any two operations, also when a test has panicked in the middle of one.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, action: Action, path: &DiskPath, operation: Operation) -> Result<(), DiskError> {
        self.state().change(operation).map_err(|source| self.error(action, path, source))
    }

    fn error(&self, action: Action, path: &DiskPath, source: io::Error) -> DiskError {
        DiskError { action, path: self.full_path(path), source }
    }
}

impl State {
    fn change(&mut self, operation: Operation) -> io::Result<()> {
        match &mut self.failure {
            None => self.apply(operation),
            Some(planned) if planned.after > 0 => {
                planned.after -= 1;
                self.apply(operation)
            }
            Some(Planned { failure, lasting, .. }) => {
                let failure = *failure;
                if !*lasting {
                    self.failure = None;
                }
                if let (Failure::Full, Operation::CreateFile { path, mode, content }) = (failure, operation) {
                    let content = content.get(..content.len() / 2).unwrap_or_default().to_vec();
                    self.apply(Operation::CreateFile { path, mode, content })?;
                }
                Err(failure.cause())
            }
        }
    }

    fn apply(&mut self, operation: Operation) -> io::Result<()> {
        self.model.apply(&operation)?;
        self.recording.operations.push(operation);
        Ok(())
    }
}

impl Disk for SimulatedDisk {
    fn full_path(&self, path: &DiskPath) -> PathBuf {
        path.under(Path::new(ROOT))
    }

    fn read(&self, path: &DiskPath, limit: usize) -> Result<Vec<u8>, DiskError> {
        let state = self.state();
        if state.bad.contains(path) {
            return Err(self.error(Action::Read, path, Errno::IO.into()));
        }
        let read = state.model.with(
            path,
            |_, content| if content.len() > limit { Err(too_long(limit)) } else { Ok(content.to_vec()) },
            |_, _| Err(Errno::ISDIR.into()),
        );
        read.map_err(|source| self.error(Action::Read, path, source))
    }

    fn metadata(&self, path: &DiskPath) -> Result<Option<Metadata>, DiskError> {
        let found = self.state().model.with(
            path,
            |mode, content| Ok(Metadata::File { length: content.len() as u64, mode }),
            |mode, _| Ok(Metadata::Directory { mode }),
        );
        match found {
            Ok(metadata) => Ok(Some(metadata)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.error(Action::Examine, path, source)),
        }
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>, DiskError> {
        let listed = self.state().model.with(
            path,
            |_, _| Err(Errno::NOTDIR.into()),
            |_, names| {
                let names: Vec<String> = names.cloned().collect();
                if names.len() > LIST_LIMIT {
                    Err(io::Error::other("there are too many names in it"))
                } else {
                    Ok(names)
                }
            },
        );
        listed.map_err(|source| self.error(Action::List, path, source))
    }

    fn create_directory(&self, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
        self.change(Action::CreateDirectory, path, Operation::CreateDirectory { path: path.clone(), mode })
    }

    fn create_exclusive(&self, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError> {
        let operation = Operation::CreateFile { path: path.clone(), mode, content: bytes.to_vec() };
        self.change(Action::CreateFile, path, operation)
    }

    fn sync_file(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        let site = SyncSite { site, target: SyncTarget::File };
        self.change(Action::SyncFile, path, Operation::Sync { site, path: path.clone() })
    }

    fn sync_directory(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        let site = SyncSite { site, target: SyncTarget::Directory };
        self.change(Action::SyncDirectory, path, Operation::Sync { site, path: path.clone() })
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        self.change(Action::Rename, to, Operation::Rename { from: from.clone(), to: to.clone() })
    }

    fn remove_file(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.change(Action::RemoveFile, path, Operation::RemoveFile { path: path.clone() })
    }

    fn clear_directory(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.change(Action::ClearDirectory, path, Operation::ClearDirectory { path: path.clone() })
    }
}
