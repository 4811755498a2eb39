//! Mounts as the system sees them: which ones a test has, and that none is left.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

/// The mounts of this namespace at this directory and below, the innermost first.
///
/// # Panics
///
/// When the list of mounts cannot be read.
#[must_use]
pub fn below(directory: &Path) -> Vec<PathBuf> {
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts can be read");
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    // The fifth field is the place (proc_pid_mountinfo(5)). Places of tests have no character that is escaped there.
    let places = list.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut found: Vec<PathBuf> = places.filter(|place| place.starts_with(&directory)).collect();
    found.sort();
    found.reverse();
    found
}

/// Takes away what is mounted at this directory and below, whoever still uses it, also what a process has left that is gone.
pub fn clear(directory: &Path) {
    for place in below(directory) {
        if rustix::mount::unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            // A user without rights has them through this program; if it fails as well, the mount is found by whoever looks.
            let _ = std::process::Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&place).output();
        }
    }
}
