//! One snapshot: received, checked, on the disk under its name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use polis_consensus::{Consensus, KvError, peer_url};
use polis_fault::point;
use polis_storage::{Directory, Disk, DiskError, DiskPath, FILE_MODE};
use polis_supervisor::Context;

use crate::checked::{Checker, DamagedSnapshot, check_file};
use crate::name::SnapshotName;
use crate::tool::{RestoreError, RestoreTool, Restored};

/// Name of the file while it is received.
const PARTIAL: &str = "partial";

/// Name of the directory into which a snapshot is restored for trial.
const TRIAL: &str = "trial";

/// Room that must stay beside the snapshot and its trial: what a restore claims for its log at once (64 MB), and what the node needs
/// meanwhile.
const ROOM: u64 = 192 << 20;

/// No snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// etcd does not give it.
    #[error("etcd did not give a copy of its database")]
    Receive(#[from] KvError),
    /// There is no room for it.
    #[error("there is too little room: {} MiB are free, and {} MiB are needed to take it and to restore it for trial", free >> 20, needed >> 20)]
    NoRoom {
        /// Free bytes.
        free: u64,
        /// Needed bytes.
        needed: u64,
    },
    /// It cannot be written or read.
    #[error("the copy could not be written to {}, or read from there", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is on the disk is not what etcd gave.
    #[error("the copy was not kept")]
    Damaged(#[from] DamagedSnapshot),
    /// It cannot be restored.
    #[error("the copy was not kept, as it cannot be restored")]
    Restore(#[from] RestoreError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A snapshot that was taken just now, open for reading from its start: it can be read also when it is not kept any more.
#[derive(Debug)]
pub struct Fresh {
    /// Its name.
    pub name: SnapshotName,
    /// Its file.
    pub file: File,
    /// Bytes of it.
    pub length: u64,
}

/// Where snapshots are made and kept.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) directory: Directory,
}

impl Place {
    fn child(&self, name: &str) -> DiskPath {
        self.directory.path().child(name).expect("the name is one that is allowed")
    }

    /// Makes the directory, and removes what an interruption has left. Blocks.
    pub(crate) fn prepare(&self) -> Result<(), DiskError> {
        self.directory.create("snapshots/directory")?;
        self.clear()
    }

    /// Removes what is not a snapshot yet, or no longer needed for one. Blocks.
    fn clear(&self) -> Result<(), DiskError> {
        let (partial, trial) = (self.child(PARTIAL), self.child(TRIAL));
        if self.disk.metadata(&partial)?.is_some() {
            self.disk.remove_file(&partial)?;
        }
        if self.disk.metadata(&trial)?.is_some() {
            self.disk.clear_directory(&trial)?;
        }
        Ok(())
    }

    /// The snapshots that are there, the oldest first. Blocks.
    pub(crate) fn list(&self) -> Result<Vec<SnapshotName>, DiskError> {
        let mut names: Vec<SnapshotName> = self.directory.list()?.iter().filter_map(|name| name.parse().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a snapshot. Blocks.
    pub(crate) fn open(&self, name: SnapshotName) -> Result<Fresh, TakeError> {
        let path = self.full_path(&name.to_string());
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.map_err(|source| TakeError::File { path, source })?;
        Ok(Fresh { name, file, length })
    }

    /// Removes a snapshot. Blocks.
    pub(crate) fn remove(&self, name: SnapshotName) -> Result<(), DiskError> {
        polis_storage::durable::remove(&*self.disk, "snapshots/remove", &self.child(&name.to_string()))
    }

    /// Gives a snapshot another name, durably. Blocks.
    pub(crate) fn rename(&self, from: SnapshotName, to: SnapshotName) -> Result<(), DiskError> {
        self.name(&self.child(&from.to_string()), to)
    }

    fn name(&self, from: &DiskPath, name: SnapshotName) -> Result<(), DiskError> {
        const SITE: &str = "snapshots/name";
        point(SITE, "begin");
        self.disk.rename(from, &self.child(&name.to_string()))?;
        point(SITE, "renamed");
        self.disk.sync_directory(SITE, self.directory.path())?;
        point(SITE, "done");
        Ok(())
    }

    fn full_path(&self, name: &str) -> PathBuf {
        self.disk.full_path(&self.child(name))
    }
}

/// Takes one. With a tool it is restored for trial before it counts. `now` is the time of its name.
pub(crate) async fn take(
    place: &Place,
    consensus: &Consensus,
    tool: Option<&RestoreTool>,
    now: Timestamp,
    context: &Context,
) -> Result<SnapshotName, TakeError> {
    let taken = receive_and_check(place, consensus, tool, now, context).await;
    let cleared = {
        let place = place.clone();
        context.blocking(move || place.clear()).await
    };
    let name = taken?;
    cleared?;
    Ok(name)
}

async fn receive_and_check(
    place: &Place,
    consensus: &Consensus,
    tool: Option<&RestoreTool>,
    now: Timestamp,
    context: &Context,
) -> Result<SnapshotName, TakeError> {
    let mut stream = consensus.snapshot().await?;
    let name = SnapshotName { seconds: now.as_second().max(0), revision: stream.revision };
    let path = place.full_path(PARTIAL);
    check_room(&path, stream.size)?;
    let failed = |path: &Path, source| TakeError::File { path: path.to_owned(), source };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(&path)
        .map_err(|source| failed(&path, source))?;
    let mut checker = Checker::default();
    while let Some(bytes) = stream.next().await? {
        checker.update(&bytes);
        let written = context.blocking(move || file.write_all(&bytes).map(|()| file)).await;
        file = written.map_err(|source| failed(&path, source))?;
    }
    drop(file);
    checker.finish()?;
    let (kept, partial) = (place.clone(), path.clone());
    let read_back = move || {
        kept.disk.sync_file("snapshots/sync", &kept.child(PARTIAL))?;
        // What the disk has, and not what was given to it.
        check_file(&partial).map_err(|source| failed(&partial, source))??;
        Ok::<(), TakeError>(())
    };
    context.blocking(read_back).await?;
    if let Some(tool) = tool {
        let trial = Restored {
            data_directory: place.full_path(TRIAL).join("data"),
            name: "trial".to_owned(),
            peer_url: peer_url(std::net::Ipv6Addr::LOCALHOST),
            token: "trial".to_owned(),
        };
        let (kept, trial_directory) = (place.clone(), place.child(TRIAL));
        context
            .blocking(move || kept.disk.create_directory(&trial_directory, polis_storage::DIRECTORY_MODE))
            .await
            .or_else(|error| if error.already_exists() { Ok(()) } else { Err(error) })?;
        tool.restore(context, &path, &trial).await?;
    }
    let kept = place.clone();
    context.blocking(move || kept.name(&kept.child(PARTIAL), name)).await?;
    Ok(name)
}

fn check_room(path: &Path, size: u64) -> Result<(), TakeError> {
    let directory = path.parent().unwrap_or(path);
    let space = rustix::fs::statvfs(directory)
        .map_err(|source| TakeError::File { path: directory.to_owned(), source: source.into() })?;
    let (free, needed) = (space.f_bavail.saturating_mul(space.f_frsize), size.saturating_mul(2).saturating_add(ROOM));
    if free < needed { Err(TakeError::NoRoom { free, needed }) } else { Ok(()) }
}
