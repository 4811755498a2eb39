//! [`Operation`]: one change to a disk, as a value.

use std::fmt;

use crate::path::DiskPath;

/// A change to a disk that succeeded.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// A directory was made.
    CreateDirectory {
        /// Its path.
        path: DiskPath,
        /// Permission bits.
        mode: u32,
    },
    /// A file was made and written, or a part of it before the disk was full.
    CreateFile {
        /// Its path.
        path: DiskPath,
        /// Permission bits.
        mode: u32,
        /// What was written.
        content: Vec<u8>,
    },
    /// Something was made durable.
    Sync {
        /// Who did it, and to what.
        site: SyncSite,
        /// The file or directory.
        path: DiskPath,
    },
    /// Something was not made durable, though it should have been: see [`super::Recording::without_sync`].
    ForgottenSync {
        /// Who forgot it.
        site: SyncSite,
    },
    /// A file or directory got another name in its directory.
    Rename {
        /// Old path.
        from: DiskPath,
        /// New path.
        to: DiskPath,
    },
    /// A file was removed.
    RemoveFile {
        /// Its path.
        path: DiskPath,
    },
    /// All in a directory was removed.
    ClearDirectory {
        /// Its path.
        path: DiskPath,
    },
}

/// Shows what was done and to what, but no content, which may be secret.
impl fmt::Debug for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDirectory { path, .. } => write!(formatter, "create directory {path}"),
            Self::CreateFile { path, content, .. } => {
                write!(formatter, "create file {path} of {} bytes", content.len())
            }
            Self::Sync { site, path } => write!(formatter, "sync {path} for {site}"),
            Self::ForgottenSync { site } => write!(formatter, "forget sync for {site}"),
            Self::Rename { from, to } => write!(formatter, "rename {from} to {to}"),
            Self::RemoveFile { path } => write!(formatter, "remove file {path}"),
            Self::ClearDirectory { path } => write!(formatter, "clear directory {path}"),
        }
    }
}

/// One place in the code that makes something durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncSite {
    /// Site, as for [`polis_fault::point`].
    pub site: &'static str,
    /// Which of its syncs.
    pub target: SyncTarget,
}

/// What a sync is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncTarget {
    /// The content of a file.
    File,
    /// The names in a directory.
    Directory,
}

impl fmt::Display for SyncSite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.target {
            SyncTarget::File => "file",
            SyncTarget::Directory => "directory",
        };
        write!(formatter, "{} ({target})", self.site)
    }
}
