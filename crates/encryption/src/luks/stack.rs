//! [`Stack`]: mapping and mount on one device, and what a dead process left of them.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polis_disks::{Device, DeviceKind, Places, Usage, mappings_on, mounts, stands_on};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::problem::Problem;
use crate::child;

/// How long a mount may stay busy. Only a process that was just killed can hold it, until the kernel has taken it apart.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(20);
/// How often it is tried; the kernel tells nobody when it is over.
const UNMOUNT_INTERVAL: Duration = Duration::from_millis(50);
/// What all mounts of data get: nothing on them is a program or a device.
const FLAGS: MountFlags = MountFlags::NODEV.union(MountFlags::NOEXEC).union(MountFlags::NOSUID);

/// One device and the place where it is mounted.
pub(super) struct Stack<'a> {
    pub(super) places: &'a Places,
    pub(super) device: &'a Device,
    /// Absolute, without symbolic links: mounts are listed so.
    pub(super) mount_point: PathBuf,
}

impl Stack<'_> {
    /// Whether the device is mounted at its place, and nothing over it.
    pub(super) fn is_mounted(&self) -> Result<bool, Problem> {
        let mounts = mounts(self.places)?;
        match mounts.iter().rfind(|mount| mount.at == self.mount_point) {
            Some(mount) => Ok(stands_on(self.places, mount.device, self.device)?),
            None => Ok(false),
        }
    }

    /// Whether the file system that is mounted has given up. It stays mounted then, and everything on it fails until it is mounted anew;
    /// to open its root needs nothing that is not in memory otherwise.
    pub(super) fn has_shut_down(&self) -> bool {
        let opened =
            rustix::fs::open(&self.mount_point, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        matches!(opened, Err(Errno::IO))
    }

    /// Unmounts what is of this device at its place. Something else there is left alone, and is an error.
    pub(super) fn unmount(&self) -> Result<(), Problem> {
        let end = Instant::now() + UNMOUNT_DEADLINE;
        loop {
            let mounts = mounts(self.places)?;
            let Some(mount) = mounts.into_iter().rfind(|mount| mount.at == self.mount_point) else { return Ok(()) };
            if !stands_on(self.places, mount.device, self.device)? {
                let source_name = mount.source.display().to_string();
                return Err(Problem::ForeignMount { at: mount.at, kind: mount.kind, source_name });
            }
            match rustix::mount::unmount(&self.mount_point, UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                Err(Errno::BUSY) if Instant::now() < end => {
                    let _ = child::wait(&mut [], UNMOUNT_INTERVAL);
                }
                Err(Errno::BUSY) => return Err(Problem::Busy { at: self.mount_point.clone() }),
                Err(cause) => return Err(self.refused(cause)),
            }
        }
    }

    /// Mounts the XFS on `source` at the place of this device.
    pub(super) fn mount(&self, source: &Path) -> Result<(), Problem> {
        // An XFS with the same UUID is mounted already only if it is the same one.
        rustix::mount::mount(source, &self.mount_point, c"xfs", FLAGS, None).map_err(|cause| self.refused(cause))
    }

    /// Makes a block device of what may be a file. The second is what keeps it attached until it is mounted.
    pub(super) fn block_device(&self) -> Result<(PathBuf, Option<std::os::fd::OwnedFd>), Problem> {
        match self.device.kind() {
            DeviceKind::Block { .. } => Ok((self.device.path().to_owned(), None)),
            DeviceKind::Image => {
                let failed = |source| Problem::Kernel { at: self.device.path().to_owned(), source };
                let file = File::options().read(true).write(true).open(self.device.path()).map_err(failed)?;
                let (path, descriptor) = polis_sys::attach_loop(file.as_fd()).map_err(failed)?;
                Ok((path, Some(descriptor)))
            }
        }
    }

    /// Names of the mappings of ours on this device, those first that stand on others: that of an authenticated volume stands on one
    /// whose name is longer.
    pub(super) fn mappings(&self) -> Result<Vec<String>, Problem> {
        let mappings = mappings_on(self.places, self.device)?;
        let mut names: Vec<String> = mappings.into_iter().map(|mapping| mapping.name).collect();
        names.retain(|name| super::names::is_mapping(name));
        names.sort_unstable_by_key(String::len);
        Ok(names)
    }

    /// Fails if anybody uses the device, after all that is ours was cleared.
    pub(super) fn check_free(&self) -> Result<(), Problem> {
        let uses = Usage::of(self.places, self.device)?;
        if uses.is_empty() {
            return Ok(());
        }
        Err(Problem::InUse { device: self.device.path().to_owned(), uses })
    }

    fn refused(&self, cause: Errno) -> Problem {
        Problem::Kernel { at: self.mount_point.clone(), source: cause.into() }
    }
}
