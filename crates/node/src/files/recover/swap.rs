//! The one step that changes the node: a new data directory takes the place of the old one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_storage::{Disk, DiskError, DiskPath, Layout};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Call site of its fault points.
const SITE: &str = "recover/swap";

/// The place did not change hands.
#[derive(Debug, thiserror::Error)]
#[error("the new data of the consensus member could not be put in the place of the old ones")]
pub(super) struct SwapError(#[from] io::Error);

impl From<DiskError> for SwapError {
    fn from(error: DiskError) -> Self {
        Self(io::Error::other(error))
    }
}

/// Puts `new`, a directory in that of etcd, in the place of its data directory, durably; those that were there are kept beside it,
/// under the name of a removed member's. Returns where. Blocks.
///
/// The two change places at once where the file system can do that. Where it cannot, a kill between the two steps leaves the old data
/// where they are kept, and no others; a repetition finds them there.
pub(super) fn swap(disk: &Arc<dyn Disk>, new: &DiskPath) -> Result<Option<PathBuf>, SwapError> {
    let etcd = Layout::new(Arc::clone(disk)).data.etcd;
    let (parent, data) = (etcd.directory.path(), etcd.data.path());
    let kept = free_name(disk, parent)?;
    polis_fault::point(SITE, "begin");
    let was_there = disk.metadata(data)?.is_some() && !disk.list(data)?.is_empty();
    if !was_there {
        if disk.metadata(data)?.is_some() {
            std::fs::remove_dir(disk.full_path(data))?;
        }
        disk.rename(new, data)?;
        disk.sync_directory(SITE, parent)?;
        polis_fault::point(SITE, "done");
        return Ok(None);
    }
    // First under the name that the old ones will have: so whichever of the two is lost by a kill has a name that keeps it.
    disk.rename(new, &kept)?;
    disk.sync_directory(SITE, parent)?;
    polis_fault::point(SITE, "named");
    let (kept_path, data_path) = (disk.full_path(&kept), disk.full_path(data));
    match exchange(&kept_path, &data_path) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            disk.rename(&kept, new)?;
            disk.rename(data, &kept)?;
            polis_fault::point(SITE, "between");
            disk.rename(new, data)?;
        }
        Err(error) => return Err(SwapError(error.into())),
    }
    polis_fault::point(SITE, "exchanged");
    disk.sync_directory(SITE, parent)?;
    polis_fault::point(SITE, "done");
    Ok(Some(kept_path))
}

fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// The next name of a removed member's data that nothing has.
fn free_name(disk: &Arc<dyn Disk>, parent: &DiskPath) -> Result<DiskPath, DiskError> {
    let numbers = disk.list(parent)?;
    let numbers = numbers.iter().filter_map(|name| name.strip_prefix("removed-")?.parse::<u64>().ok());
    let number = numbers.max().unwrap_or(0) + 1;
    Ok(parent.child(&format!("removed-{number}")).expect("the name is one that is allowed"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polis_storage::HostDisk;
    use tempfile::TempDir;

    use super::*;

    fn scene(old: Option<&str>) -> (TempDir, Arc<dyn Disk>, PathBuf, DiskPath) {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let etcd = directory.path().join("data/etcd");
        fs::create_dir_all(etcd.join("data")).unwrap();
        fs::create_dir_all(etcd.join("new")).unwrap();
        fs::write(etcd.join("new/file"), "new").unwrap();
        if let Some(old) = old {
            fs::write(etcd.join("data/file"), old).unwrap();
        }
        (directory, disk, etcd, DiskPath::parse("data/etcd/new").unwrap())
    }

    #[test]
    fn the_new_data_take_the_place_and_the_old_ones_are_kept() {
        let (_directory, disk, etcd, new) = scene(Some("old"));
        fs::create_dir(etcd.join("removed-4")).unwrap();
        let kept = swap(&disk, &new).unwrap();
        assert_eq!(kept, Some(etcd.join("removed-5")));
        assert_eq!(fs::read(etcd.join("data/file")).unwrap(), b"new");
        assert_eq!(fs::read(etcd.join("removed-5/file")).unwrap(), b"old");
        assert!(!etcd.join("new").exists());
    }

    #[test]
    fn where_there_are_none_nothing_is_kept() {
        let (_directory, disk, etcd, new) = scene(None);
        assert_eq!(swap(&disk, &new).unwrap(), None);
        assert_eq!(fs::read(etcd.join("data/file")).unwrap(), b"new");
        let (_directory, disk, etcd, new) = scene(None);
        fs::remove_dir(etcd.join("data")).unwrap();
        assert_eq!(swap(&disk, &new).unwrap(), None);
        assert_eq!(fs::read(etcd.join("data/file")).unwrap(), b"new");
    }
}
