//! [`HostDisk`]: the disk of the machine, below one directory.
//!
//! Paths are walked name by name from the open root, and no symbolic link is followed on the way: whoever can write
//! into one directory of a node cannot send its writes anywhere else.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::disk::{Action, Disk, DiskError, LIST_LIMIT, Metadata, invalid, too_long};
use crate::path::DiskPath;

/// Deepest directory that [`Disk::clear_directory`] empties: nothing of ours is deeper than three, and each level needs
/// an open file and stack.
const CLEAR_DEPTH_LIMIT: usize = 32;

/// The real disk, below a root directory.
#[derive(Debug)]
pub struct HostDisk {
    path: PathBuf,
    root: OwnedFd,
}

impl HostDisk {
    /// Opens the disk below the directory at `path`. A symbolic link in `path` itself is followed: it is the choice of
    /// whoever starts the node.
    ///
    /// # Errors
    ///
    /// When there is no such directory or it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|cause| DiskError {
            action: Action::List,
            path: path.to_owned(),
            source: cause.into(),
        })?;
        Ok(Self { path: path.to_owned(), root })
    }

    /// The root directory, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open root directory.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory below the root.
    fn directory(&self, path: &DiskPath) -> io::Result<OwnedFd> {
        let mut directory = open_directory(self.root.as_fd(), ".")?;
        for name in path.names() {
            directory = open_directory(directory.as_fd(), name)?;
        }
        Ok(directory)
    }

    /// Runs `operation` with the open directory of `path` and the name in it.
    fn at<T>(
        &self,
        action: Action,
        path: &DiskPath,
        operation: impl FnOnce(BorrowedFd<'_>, &str) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let result = match path.split() {
            None => operation(self.root.as_fd(), "."),
            Some((parent, name)) => self.directory(&parent).and_then(|directory| operation(directory.as_fd(), name)),
        };
        result.map_err(|source| self.error(action, path, source))
    }

    fn error(&self, action: Action, path: &DiskPath, source: io::Error) -> DiskError {
        DiskError { action, path: self.full_path(path), source }
    }
}

impl Disk for HostDisk {
    fn full_path(&self, path: &DiskPath) -> PathBuf {
        path.under(&self.path)
    }

    fn read(&self, path: &DiskPath, limit: usize) -> Result<Vec<u8>, DiskError> {
        self.at(Action::Read, path, |directory, name| {
            // Without O_NONBLOCK, opening a pipe that someone put there would wait for its writer.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            let length = match kind(&rustix::fs::fstat(&file)?) {
                Metadata::File { length, .. } => length,
                Metadata::Directory { .. } => return Err(Errno::ISDIR.into()),
                Metadata::Other => return Err(invalid("it is not an ordinary file")),
            };
            if length > limit as u64 {
                return Err(too_long(limit));
            }
            // One byte of room more, so that reading the end does not make the buffer grow; the length is only a hint,
            // and the limit is kept even if the file grows meanwhile.
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(limit) + 1);
            File::from(file).take(limit as u64 + 1).read_to_end(&mut bytes)?;
            if bytes.len() > limit { Err(too_long(limit)) } else { Ok(bytes) }
        })
    }

    fn metadata(&self, path: &DiskPath) -> Result<Option<Metadata>, DiskError> {
        let found = self.at(Action::Examine, path, |directory, name| {
            Ok(kind(&rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
        });
        match found {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>, DiskError> {
        let names = self.directory(path).and_then(|directory| names(directory.as_fd(), LIST_LIMIT));
        let names = names.map_err(|source| self.error(Action::List, path, source))?;
        let mut names: Vec<String> =
            names.into_iter().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()).collect();
        names.sort();
        Ok(names)
    }

    fn create_directory(&self, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
        self.at(Action::CreateDirectory, path, |directory, name| {
            Ok(rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(mode))?)
        })
    }

    fn create_exclusive(&self, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError> {
        self.at(Action::CreateFile, path, |directory, name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(mode))?;
            File::from(file).write_all(bytes)
        })
    }

    fn sync_file(&self, _site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        self.at(Action::SyncFile, path, |directory, name| {
            // Reading is enough for a sync, and works on what is mounted read-only, where there is nothing to do.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Directory {
                return Err(Errno::ISDIR.into());
            }
            Ok(rustix::fs::fsync(file)?)
        })
    }

    fn sync_directory(&self, _site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
        let synced = self.directory(path).and_then(|directory| Ok(rustix::fs::fsync(directory)?));
        synced.map_err(|source| self.error(Action::SyncDirectory, path, source))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        match (from.split(), to.parent()) {
            (Some((parent, old)), Some(same)) if parent == same => {
                self.at(Action::Rename, to, |directory, new| Ok(rustix::fs::renameat(directory, old, directory, new)?))
            }
            (Some(_) | None, Some(_) | None) => {
                Err(self.error(Action::Rename, to, invalid("both names must be in the same directory")))
            }
        }
    }

    fn remove_file(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.at(Action::RemoveFile, path, |directory, name| {
            Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
        })
    }

    fn clear_directory(&self, path: &DiskPath) -> Result<(), DiskError> {
        let cleared = self.directory(path).and_then(|directory| {
            let device = rustix::fs::fstat(&directory)?.st_dev;
            clear(directory.as_fd(), device, CLEAR_DEPTH_LIMIT)
        });
        cleared.map_err(|source| self.error(Action::ClearDirectory, path, source))
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn kind(stat: &Stat) -> Metadata {
    let mode = stat.st_mode & 0o7777;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Metadata::File { length: u64::try_from(stat.st_size).unwrap_or(0), mode },
        FileType::Directory => Metadata::Directory { mode },
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Metadata::Other,
    }
}

/// Names in an open directory, at most `limit`.
fn names(directory: BorrowedFd<'_>, limit: usize) -> io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() == c"." || entry.file_name() == c".." {
            continue;
        }
        if names.len() == limit {
            return Err(io::Error::other(format!("there are more than {limit} names in it")));
        }
        names.push(entry.file_name().to_owned());
    }
    Ok(names)
}

fn clear(directory: BorrowedFd<'_>, device: u64, depth: usize) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other(format!("it is more than {CLEAR_DEPTH_LIMIT} directories deep")));
    }
    // The names are collected first: removing some while a directory is read can make the reading skip others.
    for name in names(directory, usize::MAX)? {
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if stat.st_dev != device {
            let shown = name.to_string_lossy().into_owned();
            return Err(io::Error::other(format!("another file system is mounted in it, at {shown}: unmount it")));
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(directory, &name, flags, Mode::empty())?;
            clear(inner.as_fd(), device, depth - 1)?;
            rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR)?;
        } else {
            rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
        }
    }
    Ok(())
}
