//! The etcd binary that the nodes run.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const INSTALL: &str = "in a checkout of Polis:  scripts/setup run   (then: polis dev up --etcd target/tools/etcd/usr/bin/etcd)\n\
                       on Debian, as root:      apt-get install etcd-server";

/// Where etcd is: as given, else as recorded, else in PATH. The path is absolute.
///
/// # Errors
///
/// When there is none; the message has the line that installs it.
pub(super) fn find(given: Option<&Path>, recorded: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return usable(given).ok_or_else(|| {
            Failure::usage(format!("there is no etcd at {}", given.display()))
                .because_of("it is not a file that can be run")
                .hint(INSTALL)
        });
    }
    let search = env::var_os("PATH").unwrap_or_default();
    recorded.and_then(usable).or_else(|| find_in(&search)).ok_or_else(|| {
        let failure = Failure::usage("etcd is missing; the nodes of a cluster keep its state in it");
        match recorded {
            Some(recorded) => {
                failure.because_of(format!("it was at {} and is gone, and none is in PATH", recorded.display()))
            }
            None => failure.because_of("no --etcd was given, and none is in PATH"),
        }
        .hint(INSTALL)
    })
}

fn find_in(search: &OsStr) -> Option<PathBuf> {
    env::split_paths(search)
        .filter(|directory| directory.is_absolute())
        .find_map(|directory| usable(&directory.join("etcd")))
}

/// The absolute path, if a file that can be run is there.
fn usable(path: &Path) -> Option<PathBuf> {
    let data = fs::metadata(path).ok()?;
    let runs = data.is_file() && data.permissions().mode() & 0o111 != 0;
    if runs { std::path::absolute(path).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_runs_counts() {
        let temporary = tempfile::tempdir().unwrap();
        let (first, second) = (temporary.path().join("1"), temporary.path().join("2"));
        for directory in [&first, &second] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("etcd"), "").unwrap();
        }
        let search = env::join_paths([Path::new("relative"), &first, &second]).unwrap();
        assert_eq!(find_in(&search), None);
        fs::set_permissions(second.join("etcd"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(&search), Some(second.join("etcd")));
        assert_eq!(find(Some(&second.join("etcd")), None).unwrap(), second.join("etcd"));
        assert_eq!(find(None, Some(&second.join("etcd"))).unwrap(), second.join("etcd"));
        let failure = format!("{:?}", find(Some(&first.join("etcd")), None).unwrap_err());
        assert!(failure.contains("scripts/setup run") && failure.contains("Usage"), "{failure}");
    }
}
