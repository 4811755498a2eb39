//! Puts away the data of a member that was removed, so that a role given back starts clean (window W23).
//!
//! They are renamed and not deleted: should the removal have been a mistake, they are what is left of it. A bounded number is
//! kept.

use std::path::PathBuf;
use std::sync::Arc;

use polis_fault::point;
use polis_storage::{DIRECTORY_MODE, DataEtcd, Disk, DiskError, DiskPath, Layout, Metadata, durable};

/// How many removed members' data are kept, the newest. Each may be as large as the database's quota.
const KEPT: usize = 2;

/// Names of the directories beside the member's data in which `polis cluster recover` works: what is found there is of an attempt that
/// was cut off, and holds what the data hold.
pub const RECOVERY_DIRECTORIES: [&str; 2] = ["recovering", "recovered"];

/// Beginning of the names of directories with data of removed members; a number follows.
const PREFIX: &str = "removed-";

/// Renames the data directory of the member, which must not run, to `removed-<n>` beside it, durably, and leaves an empty one
/// in its place. Of those that were set aside, the newest are kept. Returns where the data are now;
/// `None` when there were none. Idempotent: after an interruption at any point the next call finishes. Blocks.
///
/// Fault points are `etcd/set-aside` with the steps `begin`, `renamed`, `emptied`, and those of the directory that is made.
///
/// # Errors
///
/// When the disk fails.
pub fn set_aside(disk: &Arc<dyn Disk>) -> Result<Option<PathBuf>, DiskError> {
    const SITE: &str = "etcd/set-aside";
    let etcd = Layout::new(Arc::clone(disk)).data.etcd;
    let (parent, data) = (etcd.directory.path(), etcd.data.path());
    let before = Before::find(&**disk, parent)?;
    let mut ours = before.directories;
    let mut moved = None;
    point(SITE, "begin");
    if matches!(disk.metadata(data)?, Some(Metadata::Directory { .. })) && !disk.list(data)?.is_empty() {
        let number = before.highest + 1;
        disk.rename(data, &numbered(parent, number))?;
        moved = Some(disk.full_path(&numbered(parent, number)));
        ours.push(number);
    }
    point(SITE, "renamed");
    // Also for what an earlier call has renamed before it was cut off.
    disk.sync_directory(SITE, parent)?;
    for number in &ours[..ours.len().saturating_sub(KEPT)] {
        // The emptied directory becomes the new one, so that none is left over.
        disk.clear_directory(&numbered(parent, *number))?;
        disk.rename(&numbered(parent, *number), data)?;
    }
    point(SITE, "emptied");
    durable::create_directory(&**disk, SITE, data, DIRECTORY_MODE)?;
    Ok(moved)
}

/// The directories with copies of the member's data in them: those of an interrupted recovery, and those of removed members, the
/// oldest first. What is merely called like one is not among them.
/// Blocks.
///
/// # Errors
///
/// When the disk fails.
pub fn set_aside_directories(disk: &dyn Disk, etcd: &DataEtcd) -> Result<Vec<DiskPath>, DiskError> {
    let parent = etcd.directory.path();
    if !matches!(disk.metadata(parent)?, Some(Metadata::Directory { .. })) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for name in RECOVERY_DIRECTORIES {
        let path = parent.child(name).expect("the name is one that is allowed");
        if matches!(disk.metadata(&path)?, Some(Metadata::Directory { .. })) {
            all.push(path);
        }
    }
    let numbers = Before::find(disk, parent)?.directories;
    all.extend(numbers.into_iter().map(|number| numbered(parent, number)));
    Ok(all)
}

fn numbered(parent: &DiskPath, number: u64) -> DiskPath {
    parent.child(&format!("{PREFIX}{number}")).expect("the name is one that is allowed")
}

/// What was set aside before.
#[derive(Default)]
struct Before {
    /// Numbers of the directories that are ours, in order: those with exactly such a name.
    directories: Vec<u64>,
    /// Highest number that any name has.
    highest: u64,
}

impl Before {
    fn find(disk: &dyn Disk, parent: &DiskPath) -> Result<Self, DiskError> {
        let mut before = Self::default();
        for name in disk.list(parent)? {
            let Some(number) = name.strip_prefix(PREFIX).and_then(|number| number.parse::<u64>().ok()) else {
                continue;
            };
            before.highest = before.highest.max(number);
            let path = parent.child(&name).ok().filter(|_| name == format!("{PREFIX}{number}"));
            if let Some(path) = path
                && matches!(disk.metadata(&path)?, Some(Metadata::Directory { .. }))
            {
                before.directories.push(number);
            }
        }
        before.directories.sort_unstable();
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use polis_storage::HostDisk;
    use tempfile::TempDir;

    use super::*;

    fn setup() -> (TempDir, Arc<dyn Disk>, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let layout = Layout::new(Arc::clone(&disk));
        layout.data.directory.create("test").unwrap();
        layout.data.etcd.directory.create("test").unwrap();
        let etcd = layout.data.etcd.directory.full_path();
        (directory, disk, etcd)
    }

    fn fill(etcd: &std::path::Path, content: &str) {
        std::fs::create_dir_all(etcd.join("data/member/wal")).unwrap();
        std::fs::write(etcd.join("data/member/wal/0.wal"), content).unwrap();
    }

    #[test]
    fn data_are_renamed_and_an_empty_directory_is_left() {
        let (_directory, disk, etcd) = setup();
        fill(&etcd, "first");
        assert_eq!(set_aside(&disk).unwrap(), Some(etcd.join("removed-1")));
        assert_eq!(std::fs::read(etcd.join("removed-1/member/wal/0.wal")).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(etcd.join("data")).unwrap().count(), 0);
        // Nothing more to do.
        assert_eq!(set_aside(&disk).unwrap(), None);
        // Cut off between the rename and the new directory.
        std::fs::remove_dir(etcd.join("data")).unwrap();
        assert_eq!(set_aside(&disk).unwrap(), None);
        assert!(etcd.join("data").is_dir());
    }

    #[test]
    fn the_newest_are_kept_and_what_is_not_ours_is_left_alone() {
        let (_directory, disk, etcd) = setup();
        for name in ["removed-", "removed-x", "removed-01", "removed-7.old", "credentials"] {
            std::fs::create_dir(etcd.join(name)).unwrap();
            std::fs::write(etcd.join(name).join("file"), name).unwrap();
        }
        std::fs::write(etcd.join("removed-9"), "a file").unwrap();
        for number in 10..=13 {
            fill(&etcd, &number.to_string());
            assert_eq!(set_aside(&disk).unwrap(), Some(etcd.join(format!("removed-{number}"))));
            assert_eq!(std::fs::read_dir(etcd.join("data")).unwrap().count(), 0);
        }
        let found = set_aside_directories(&*disk, &Layout::new(Arc::clone(&disk)).data.etcd).unwrap();
        assert_eq!(
            found,
            ["removed-12", "removed-13"].map(|name| DiskPath::parse(&format!("data/etcd/{name}")).unwrap())
        );
        for (number, expected) in [(10, None), (11, None), (12, Some("12")), (13, Some("13"))] {
            let directory = etcd.join(format!("removed-{number}"));
            assert_eq!(directory.exists(), expected.is_some(), "{number}");
            assert_eq!(std::fs::read_to_string(directory.join("member/wal/0.wal")).ok().as_deref(), expected);
        }
        for name in ["removed-", "removed-x", "removed-01", "removed-7.old", "credentials"] {
            assert!(etcd.join(name).join("file").exists(), "{name}");
        }
        assert_eq!(std::fs::read(etcd.join("removed-9")).unwrap(), b"a file");
    }
}
