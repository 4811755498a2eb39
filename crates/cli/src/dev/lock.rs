//! One `polis dev` at a time.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::directory::Directory;
use crate::failure::Failure;
use crate::view::Progress;

/// Mode of a cluster's directory: it holds the private keys of nodes and owner.
const MODE: u32 = 0o700;

/// How often a directory may be removed by others while it is being locked, before something else must be wrong.
const MAX_ATTEMPTS: usize = 16;

/// Keeps every other `polis dev` that changes something in the same directory waiting. Ends when dropped, and with the
/// process, however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    _directory: File,
}

impl Lock {
    /// Makes the directory if it is not there, and locks it.
    ///
    /// # Errors
    ///
    /// When the system refuses, or the directory holds things that no `polis dev` made.
    pub(super) fn create(directory: &Directory, progress: &Progress) -> Result<Self, Failure> {
        let path = directory.path();
        for _ in 0..MAX_ATTEMPTS {
            let made = DirBuilder::new().recursive(true).mode(MODE).create(path);
            made.map_err(|error| failure(&LockError::Create { path: path.to_owned(), source: error }))?;
            if let Some(lock) = Self::take(path, progress).map_err(|error| failure(&error))? {
                refuse_foreign(directory)?;
                return Ok(lock);
            }
        }
        Err(failure(&LockError::Removed { path: path.to_owned() }))
    }

    /// Locks the directory; `None` when it is not there.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn existing(directory: &Directory, progress: &Progress) -> Result<Option<Self>, Failure> {
        Self::take(directory.path(), progress).map_err(|error| failure(&error))
    }

    fn take(path: &Path, progress: &Progress) -> Result<Option<Self>, LockError> {
        let failed = |source| LockError::Lock { path: path.to_owned(), source };
        let file = match File::open(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            other => other.map_err(failed)?,
        };
        let mut operation = FlockOperation::NonBlockingLockExclusive;
        loop {
            match flock(&file, operation) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {
                    progress.line(&format!("waiting for another `polis dev` that works at {}", path.display()));
                    operation = FlockOperation::LockExclusive;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        // The one that held the lock may have removed the directory.
        let locked = file.metadata().map_err(failed)?;
        let is_same = fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()));
        Ok(is_same.then_some(Self { _directory: file }))
    }
}

/// Refuses a directory that holds things that no `polis dev` made.
///
/// # Errors
///
/// When it does, or cannot be looked at.
pub(super) fn refuse_foreign(directory: &Directory) -> Result<(), Failure> {
    let path = directory.path();
    let foreign =
        directory.is_foreign().map_err(|source| failure(&LockError::Lock { path: path.to_owned(), source }))?;
    if !foreign {
        return Ok(());
    }
    Err(Failure::usage(format!("{} was not made by `polis dev`; nothing in it was touched", path.display()))
        .because_of("it is not empty and holds no polis-dev.json")
        .hint("name an empty or new directory with --dir"))
}

/// Why the directory could not be made or locked.
#[derive(Debug, thiserror::Error)]
enum LockError {
    #[error("the directory {} could not be made", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the directory {} could not be used", path.display())]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the directory {} is removed again and again by somebody else", path.display())]
    Removed { path: PathBuf },
}

fn failure(error: &LockError) -> Failure {
    Failure::of(error).hint("name another directory with --dir")
}
