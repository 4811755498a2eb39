//! Removing what a node of a trial has left.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// Longest time to wait for the process behind a mount to finish what it writes. It takes some milliseconds; what goes wrong shows
/// in the removal.
const WRITES_END: Duration = Duration::from_secs(10);

/// Time between two looks whether it has.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Removes the root of a node that does not run, with all in it.
///
/// # Errors
///
/// When the system refuses.
pub(super) fn remove(root: &Path) -> io::Result<()> {
    clear_mount(root);
    fs::remove_dir_all(root)
}

/// A node with encrypted data that was killed leaves a mount behind, dead or for a moment still alive. It is cleared by the node's
/// next start, which there is none of when everything is to go; what goes wrong here shows in the removal.
#[expect(
    clippy::disallowed_methods,
    reason = "a command that is over in milliseconds, and is nobody's child for longer"
)]
pub(super) fn clear_mount(root: &Path) {
    let place = root.join("data");
    if is_mounted(root, &place) {
        // As a node looks for it, whatever PATH says.
        let directories = ["/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin"].map(Path::new);
        let found = directories.map(|directory| directory.join("fusermount3")).into_iter().find(|path| path.is_file());
        let Some(program) = found else { return };
        let _ = Command::new(program).args(["-u", "-z", "--"]).arg(&place).stderr(Stdio::null()).status();
    }
    let deadline = Instant::now() + WRITES_END;
    while is_claimed(&root.join("encrypted")) && Instant::now() < deadline {
        sleep(LOOK_INTERVAL);
    }
}

/// Whether something is mounted at this place of the root, alive or dead.
fn is_mounted(root: &Path, place: &Path) -> bool {
    match (fs::metadata(root), fs::metadata(place)) {
        (Ok(root), Ok(place)) => root.dev() != place.dev(),
        (_, Err(error)) => error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()),
        (Err(_), Ok(_)) => false,
    }
}

/// Whether a process still works on the encrypted data: it holds a lock on their directory.
fn is_claimed(encrypted: &Path) -> bool {
    let directory = open(encrypted, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    directory.is_ok_and(|directory| {
        flock(directory, FlockOperation::NonBlockingLockExclusive).is_err_and(|error| error == Errno::WOULDBLOCK)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn waits_for(what: &str, wanted: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !wanted() {
            assert!(Instant::now() < deadline, "{what}");
            sleep(Duration::from_millis(10));
        }
    }

    /// Whatever comes, no mount is left.
    struct Unmounted<'a>(&'a Path);

    impl Drop for Unmounted<'_> {
        fn drop(&mut self) {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(self.0).stderr(Stdio::null()).status();
        }
    }

    fn gocryptfs(arguments: &[&str], cipher: &Path, mount: Option<&Path>) -> Command {
        let mut command = Command::new("gocryptfs");
        command.args(["-q", "-extpass", "echo", "-extpass", "password"]).args(arguments).arg(cipher).args(mount);
        command
    }

    #[test]
    fn the_root_of_a_node_that_was_killed_goes_with_its_mount_dead_or_alive() {
        if Command::new("gocryptfs").arg("-version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but there is no gocryptfs");
            eprintln!("skipped: gocryptfs is not installed");
            return;
        }
        for is_dead in [true, false] {
            let scratch = tempfile::tempdir().unwrap();
            let root = scratch.path().join("node-2");
            let (cipher, data) = (root.join("encrypted/cipher"), root.join("data"));
            fs::create_dir_all(&cipher).unwrap();
            fs::create_dir(&data).unwrap();
            assert!(gocryptfs(&["-init", "-scryptn", "10"], &cipher, None).status().unwrap().success());
            let _unmounted = Unmounted(&data);
            // As a node gives it the claim to the data.
            let claim = fs::File::open(root.join("encrypted")).unwrap();
            flock(&claim, FlockOperation::NonBlockingLockExclusive).unwrap();
            let mut process = gocryptfs(&["-fg"], &cipher, Some(&data)).stdout(claim).spawn().unwrap();
            let is_listed = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&*data.to_string_lossy());
            waits_for("it is not mounted", is_listed);
            fs::write(data.join("file"), "content").unwrap();
            if is_dead {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            remove(&root).unwrap();
            assert!(!root.exists() && !is_listed());
            // It has finished, and nobody had to end it.
            assert_eq!(process.wait().unwrap().success(), !is_dead);
        }
    }

    #[test]
    fn a_root_without_a_mount_has_nothing_to_clear() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("node-2");
        fs::create_dir_all(root.join("data")).unwrap();
        remove(&root).unwrap();
        assert!(!root.exists());
        assert!(remove(&root).is_err());
    }
}
