//! What a recovery is made of: the data of the node's own member, or a snapshot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use polis_consensus::{RECOVERY_DIRECTORIES, set_aside_directories};
use polis_snapshots::check_file;
use polis_storage::{Disk, DiskPath, Layout};
use polis_supervisor::BoxError;

use super::since;

/// Directory in etcd's data directory in which it keeps everything.
pub(super) const MEMBER: &str = "member";

/// What is used.
pub(super) enum Source {
    /// The data directory of a member.
    Data {
        /// Where.
        directory: PathBuf,
        /// When something in it was written last.
        written: Option<SystemTime>,
        /// Bytes of its database and log.
        bytes: u64,
    },
    /// A snapshot.
    Snapshot {
        /// Where.
        file: PathBuf,
        /// When it was written.
        written: Option<SystemTime>,
        /// Its bytes.
        bytes: u64,
    },
}

impl Source {
    /// Finds it and looks whether it can be read; a snapshot is checked by its hash. Changes nothing. Blocks.
    pub(super) fn find(disk: &Arc<dyn Disk>, snapshot: Option<&Path>) -> Result<Self, BoxError> {
        if let Some(file) = snapshot {
            let read = |error: io::Error| format!("the snapshot {} cannot be read: {error}", file.display());
            let bytes = check_file(file).map_err(read)?.map_err(|damaged| format!("{}: {damaged}", file.display()))?;
            let file = std::path::absolute(file)?;
            let written = fs::metadata(&file).and_then(|data| data.modified()).ok();
            return Ok(Self::Snapshot { file, written, bytes });
        }
        let etcd = Layout::new(Arc::clone(disk)).data.etcd;
        let mut candidates = vec![etcd.data.path().clone()];
        // Where a swap in two steps was cut off between them, the data are beside.
        let is_attempt = |path: &DiskPath| path.name().is_some_and(|name| RECOVERY_DIRECTORIES.contains(&name));
        candidates.extend(set_aside_directories(&**disk, &etcd)?.into_iter().rev().filter(|path| !is_attempt(path)));
        let found =
            candidates.iter().map(|path| disk.full_path(path)).find(|path| path.join(MEMBER).join("wal").is_dir());
        let directory = found
            .ok_or_else(|| format!("there are no data of a consensus member in {}", etcd.data.full_path().display()))?;
        let (mut written, mut bytes) = (None, 0);
        for part in ["wal", "snap"] {
            for entry in fs::read_dir(directory.join(MEMBER).join(part))? {
                let data = entry?.metadata()?;
                bytes += data.len();
                written = written.max(data.modified().ok());
            }
        }
        Ok(Self::Data { directory: std::path::absolute(directory)?, written, bytes })
    }

    /// How long ago it was written last.
    pub(super) fn age(&self) -> Option<Duration> {
        match self {
            Self::Data { written, .. } | Self::Snapshot { written, .. } => written.and_then(since),
        }
    }

    pub(super) const fn bytes(&self) -> u64 {
        match self {
            Self::Data { bytes, .. } | Self::Snapshot { bytes, .. } => *bytes,
        }
    }

    pub(super) fn snapshot(&self) -> Option<&Path> {
        match self {
            Self::Data { .. } => None,
            Self::Snapshot { file, .. } => Some(file),
        }
    }
}

/// Copies the data of a member, without what etcd has only prepared for later. Blocks.
pub(super) fn copy_member(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_member(&entry.path(), &target)?;
        } else if kind.is_file() && entry.path().extension().is_none_or(|end| end != "tmp") {
            let mut new = fs::OpenOptions::new().write(true).create_new(true).open(&target)?;
            io::copy(&mut fs::File::open(entry.path())?, &mut new)?;
        }
    }
    Ok(())
}
