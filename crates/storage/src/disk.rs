//! [`Disk`]: the few file operations that a node is built on, so that a simulated disk can stand in for the real one.
//!
//! A disk offers steps, not promises. What makes something durable is in [`crate::durable`], and all code outside this
//! crate writes through that.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::guard::DataClosed;
use crate::path::DiskPath;

/// Mode of every file that a node writes: nobody else's business.
pub const FILE_MODE: u32 = 0o600;
/// Mode of every directory that a node makes.
pub const DIRECTORY_MODE: u32 = 0o700;
/// Most names that [`Disk::list`] returns. The directories of a node hold some ten; more means that it is someone else's.
pub const LIST_LIMIT: usize = 10_000;

/// File operations below the root of one node. Calls block: asynchronous code makes them on a thread for blocking work.
pub trait Disk: Send + Sync {
    /// The path as people know it, for messages and for child processes.
    fn full_path(&self, path: &DiskPath) -> PathBuf;

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// Also when there is no file ([`DiskError::is_absent`]) or when it is longer ([`DiskError::is_too_long`]).
    fn read(&self, path: &DiskPath, limit: usize) -> Result<Vec<u8>, DiskError>;

    /// What is at this path; none if nothing is. A symbolic link is looked at, not followed.
    ///
    /// # Errors
    ///
    /// When the disk does not say.
    fn metadata(&self, path: &DiskPath) -> Result<Option<Metadata>, DiskError>;

    /// Names in a directory, sorted. A name that is not UTF-8 is shown with replacement characters.
    ///
    /// # Errors
    ///
    /// Also when there is no such directory, or when there are more than [`LIST_LIMIT`] names.
    fn list(&self, path: &DiskPath) -> Result<Vec<String>, DiskError>;

    /// Makes a directory in an existing one.
    ///
    /// # Errors
    ///
    /// Also when there is something already ([`DiskError::already_exists`]).
    fn create_directory(&self, path: &DiskPath, mode: u32) -> Result<(), DiskError>;

    /// Makes a new file with these bytes, not yet durable. If this fails after the file was made, a part of it is left.
    ///
    /// # Errors
    ///
    /// Also when there is something already ([`DiskError::already_exists`]).
    fn create_exclusive(&self, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes the content of a file durable, not its name. `site` names the caller, as for [`polis_fault::point`].
    ///
    /// # Errors
    ///
    /// When the disk does not confirm it.
    fn sync_file(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError>;

    /// Makes the names in a directory durable. `site` names the caller, as for [`polis_fault::point`].
    ///
    /// # Errors
    ///
    /// When the disk does not confirm it.
    fn sync_directory(&self, site: &'static str, path: &DiskPath) -> Result<(), DiskError>;

    /// Gives a file or directory another name in the same directory (only then does one sync make it durable), in place
    /// of the file that had that name.
    ///
    /// # Errors
    ///
    /// Also when the two are not in one directory.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError>;

    /// Removes a file, or whatever else is not a directory.
    ///
    /// # Errors
    ///
    /// Also when there is none.
    fn remove_file(&self, path: &DiskPath) -> Result<(), DiskError>;

    /// Removes all that is in a directory, but not the directory. Follows no link and enters no other file system.
    ///
    /// # Errors
    ///
    /// When something cannot be removed; the rest of it may be gone.
    fn clear_directory(&self, path: &DiskPath) -> Result<(), DiskError>;
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// An ordinary file.
    File {
        /// Bytes.
        length: u64,
        /// Permission bits.
        mode: u32,
    },
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A link, socket, pipe or device.
    Other,
}

/// What was being done when a disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`Disk::read`]
    Read,
    /// [`Disk::metadata`]
    Examine,
    /// [`Disk::list`]
    List,
    /// [`Disk::create_directory`]
    CreateDirectory,
    /// [`Disk::create_exclusive`]
    CreateFile,
    /// [`Disk::sync_file`]
    SyncFile,
    /// [`Disk::sync_directory`]
    SyncDirectory,
    /// [`Disk::rename`]
    Rename,
    /// [`Disk::remove_file`]
    RemoveFile,
    /// [`Disk::clear_directory`]
    ClearDirectory,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read the file",
            Self::Examine => "look at",
            Self::List => "list the directory",
            Self::CreateDirectory => "create the directory",
            Self::CreateFile => "write the file",
            Self::SyncFile => "flush to disk the file",
            Self::SyncDirectory => "flush to disk the directory",
            Self::Rename => "move a file into place as",
            Self::RemoveFile => "remove the file",
            Self::ClearDirectory => "empty the directory",
        })
    }
}

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct DiskError {
    /// What was tried.
    pub action: Action,
    /// Full path of the file or directory.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl DiskError {
    /// There is no such file or directory.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// The name is taken.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.source.kind() == io::ErrorKind::AlreadyExists
    }

    /// The file is longer than its format allows.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.source.kind() == io::ErrorKind::FileTooLarge
    }

    /// The disk or the quota is full: cured by making room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// The node may not do this, or the file system is read-only: cured by giving the permission back.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    }

    /// The data partition is not open, or what was behind it has died: cured by opening it.
    #[must_use]
    pub fn is_data_closed(&self) -> bool {
        // What the kernel says of a file system whose process has died, and of what was under way as it did.
        let died = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED].map(|cause| Some(cause.raw_os_error()));
        self.source.get_ref().is_some_and(|cause| cause.is::<DataClosed>())
            || died.contains(&self.source.raw_os_error())
    }

    /// The medium itself failed.
    #[must_use]
    pub fn is_medium_failure(&self) -> bool {
        self.source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
    }
}

/// Reads a file that may be absent.
///
/// # Errors
///
/// As [`Disk::read`], except for absence.
pub fn read_if_present(disk: &dyn Disk, path: &DiskPath, limit: usize) -> Result<Option<Vec<u8>>, DiskError> {
    match disk.read(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The cause of [`DiskError::is_too_long`].
pub(crate) fn too_long(limit: usize) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than the {limit} bytes that are allowed"))
}

/// The cause when a path is not fit for an operation.
pub(crate) fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
