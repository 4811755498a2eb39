//! Directories of tests, which are gone when their test has ended, however it ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::TempDir;

use crate::{mounts, processes};

/// Beginning of the name of each directory. The id and the start time of its process follow.
const PREFIX: &str = "polis-test-";

/// A directory in the system's place for temporary ones. Dropping it removes it, with what is mounted in it, after the last process
/// that works in it has ended. One whose test process was killed is removed by the next test process.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// Makes a directory.
    ///
    /// # Panics
    ///
    /// When there is none to be had.
    #[must_use]
    pub fn new() -> Self {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&std::env::temp_dir()));
        let process = std::process::id();
        let started = processes::start_time(process).expect("this process is in /proc");
        let prefix = format!("{PREFIX}{process}-{started}-");
        Self { directory: tempfile::Builder::new().prefix(&prefix).tempdir().expect("a temporary directory") }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A process that still dies could make a file while the directory is being removed. A test that fails is already
        // telling why; it should not end in a second panic.
        let left = processes::wait_until_gone(self.directory.path());
        // Of a killed node whose data are encrypted.
        mounts::clear(self.directory.path());
        if !std::thread::panicking() {
            assert!(left.is_ok(), "{}", left.unwrap_err());
        }
    }
}

/// Removes the directories of test processes that do not run any more.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if is_stale(&path) {
            mounts::clear(&path);
            // Another test process may be at the same, or the directory may be of another user.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Whether this is the directory of a test process that has ended.
fn is_stale(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
    let mut parts = name.unwrap_or_default().split('-');
    let (process, started) =
        (parts.next().and_then(|part| part.parse().ok()), parts.next().and_then(|part| part.parse().ok()));
    match (process, started) {
        // Ids are given again: a process with this id that started at another time is not the one.
        (Some(process), Some(started)) => processes::start_time(process) != Some(started),
        _ => false,
    }
}

/// Paths of all files below a directory, sorted.
///
/// # Panics
///
/// When they cannot be listed.
#[must_use]
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
            let entry = entry.expect("a directory can be read to its end");
            if entry.file_type().expect("an entry has a type").is_dir() {
                directories.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_ended_processes_are_swept() {
        let parent = Scratch::new();
        let this = std::process::id();
        let started = processes::start_time(this).unwrap();
        let names = [
            (format!("{PREFIX}{this}-{started}-abc"), true),
            (format!("{PREFIX}{this}-{}-abc", started - 1), false),
            // No process has this id (proc(5): at most 2^22).
            (format!("{PREFIX}{}-{started}-abc", u32::MAX), false),
            (format!("{PREFIX}abc"), true),
            ("something-else".to_owned(), true),
        ];
        for (name, _) in &names {
            fs::create_dir_all(parent.path().join(name).join("deep")).unwrap();
        }
        sweep(parent.path());
        for (name, stays) in &names {
            assert_eq!(parent.path().join(name).exists(), *stays, "{name}");
        }
    }
}
