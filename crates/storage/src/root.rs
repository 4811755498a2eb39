//! [`RootDirectory`]: the root of one node, checked and held for as long as the node runs.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, FlockOperation};
use rustix::io::Errno;

use crate::disk::{Action, DIRECTORY_MODE, DiskError};
use crate::durable;
use crate::host::HostDisk;
use crate::path::DiskPath;

/// The root of a node, locked against every other process: the lock is on the directory itself, so nothing is made for
/// it and nothing is left of it, and it ends with the last clone of the disk, or with the process.
#[derive(Clone, Debug)]
pub struct RootDirectory {
    disk: Arc<HostDisk>,
}

impl RootDirectory {
    /// Opens and locks the root at `path`, and makes it (mode 0700, durably, with the directories above it) if it is
    /// absent. Nothing in an existing one is changed.
    ///
    /// # Errors
    ///
    /// See [`RootError`].
    pub fn open_or_create(path: &Path) -> Result<Self, RootError> {
        match Self::open(path) {
            Err(RootError::Absent { .. }) => {
                create(path)?;
                Self::open(path)
            }
            opened => opened,
        }
    }

    /// Opens and locks the root at `path`. Nothing is changed.
    ///
    /// # Errors
    ///
    /// See [`RootError`].
    pub fn open(path: &Path) -> Result<Self, RootError> {
        let path = path.to_owned();
        let disk = match HostDisk::open(&path) {
            Ok(disk) => disk,
            Err(error) if error.is_absent() => return Err(RootError::Absent { path }),
            Err(error) if error.source.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => {
                return Err(RootError::NotADirectory { path });
            }
            Err(error) => return Err(other_owner(&path).unwrap_or(RootError::Disk(error))),
        };
        let failed = |cause: Errno| {
            RootError::Disk(DiskError { action: Action::Examine, path: path.clone(), source: cause.into() })
        };
        let owner = rustix::fs::fstat(disk.root()).map_err(failed)?.st_uid;
        let this = rustix::process::geteuid().as_raw();
        if owner != this {
            return Err(RootError::OtherOwner { path, owner, this });
        }
        let access = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::accessat(disk.root(), ".", access, AtFlags::EACCESS) {
            Ok(()) => {}
            Err(cause @ (Errno::ROFS | Errno::ACCESS)) => {
                return Err(RootError::ReadOnly { path, source: cause.into() });
            }
            Err(cause) => return Err(failed(cause)),
        }
        match rustix::fs::flock(disk.root().as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { disk: Arc::new(disk) }),
            Err(Errno::WOULDBLOCK) => Err(RootError::InUse { path }),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// The disk below the root. It keeps the lock.
    #[must_use]
    pub fn disk(&self) -> Arc<HostDisk> {
        Arc::clone(&self.disk)
    }

    /// The path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.disk.path()
    }
}

/// Makes an absent root: finds the nearest directory above that exists and makes the rest below it.
fn create(path: &Path) -> Result<(), RootError> {
    let absolute = std::path::absolute(path).map_err(|source| {
        RootError::Disk(DiskError { action: Action::CreateDirectory, path: path.to_owned(), source })
    })?;
    for ancestor in absolute.ancestors().skip(1) {
        let disk = match HostDisk::open(ancestor) {
            Ok(disk) => disk,
            Err(error) if error.is_absent() => continue,
            Err(error) => return Err(error.into()),
        };
        let rest = absolute.strip_prefix(ancestor).ok().and_then(Path::to_str);
        let Some(rest) = rest.and_then(|rest| DiskPath::parse(rest).ok()) else {
            return Err(RootError::Name { path: path.to_owned() });
        };
        return Ok(durable::create_directories(&disk, "root/create", &rest, DIRECTORY_MODE)?);
    }
    Err(RootError::Absent { path: path.to_owned() })
}

/// A directory of another user cannot even be opened; its owner is the better explanation.
fn other_owner(path: &Path) -> Option<RootError> {
    let owner = rustix::fs::stat(path).ok()?.st_uid;
    let this = rustix::process::geteuid().as_raw();
    (owner != this).then(|| RootError::OtherOwner { path: path.to_owned(), owner, this })
}

/// Why a root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// There is nothing.
    #[error("the node's root {} does not exist", path.display())]
    Absent {
        /// The root.
        path: PathBuf,
    },
    /// There is something else.
    #[error(
        "the node's root {} is not a directory; nothing was changed: give the path of a directory, or of one that can be \
         made",
        path.display()
    )]
    NotADirectory {
        /// The root.
        path: PathBuf,
    },
    /// It cannot be written to.
    #[error(
        "the node's root {} cannot be written to, and a node must write there; nothing was changed: make it writable, or \
         give another root",
        path.display()
    )]
    ReadOnly {
        /// The root.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// It belongs to someone else.
    #[error(
        "the node's root {} belongs to user {owner}, and this process runs as user {this}; nothing was changed: run the \
         node as user {owner}, or give another root",
        path.display()
    )]
    OtherOwner {
        /// The root.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of this process.
        this: u32,
    },
    /// Another process holds it.
    #[error(
        "the node's root {} is in use by a running node; nothing was changed: stop that one first, or give another root",
        path.display()
    )]
    InUse {
        /// The root.
        path: PathBuf,
    },
    /// Its path has a part that cannot be made.
    #[error("the node's root {} cannot be made: a name in it is too long, is `.` or `..`, or is not UTF-8", path.display())]
    Name {
        /// The root.
        path: PathBuf,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
