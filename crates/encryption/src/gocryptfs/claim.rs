//! The claim to the ciphertext: at most one gocryptfs works on it at a time.
//!
//! Two that write the same files would overwrite each other's blocks. So each holds a lock on the directory `encrypted`, from before
//! it is started until it is gone: the lock is on the open directory (flock(2)), which is given to gocryptfs as its standard output.
//! It says so also of a process that another life of the node has started, that has not mounted yet, or whose mount nobody here can see,
//! and no process id has to be written down anywhere.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use polis_storage::{Action, DiskError};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// Takes the claim to what is in this directory; none if a process holds it.
pub(super) fn take(directory: &Path) -> Result<Option<OwnedFd>, DiskError> {
    let failed = |error: Errno| DiskError {
        action: Action::Examine,
        path: directory.to_owned(),
        source: io::Error::from(error),
    };
    let directory =
        open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Whether nobody holds the claim, as where there is no such directory.
pub(super) fn is_free(directory: &Path) -> Result<bool, DiskError> {
    match take(directory) {
        Err(error) if error.is_absent() => Ok(true),
        taken => taken.map(|claim| claim.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use polis_sys::{Command, Output};

    use super::*;
    use crate::child;

    #[test]
    fn a_process_holds_the_claim_that_it_was_started_with_until_it_ends() {
        let place = tempfile::tempdir().unwrap();
        assert!(is_free(&place.path().join("absent")).unwrap());
        let claim = Arc::new(take(place.path()).unwrap().unwrap());
        assert!(!is_free(place.path()).unwrap(), "this process holds it");
        let stop = place.path().join("stop");
        let script = "while [ ! -e \"$0\" ]; do sleep 0.01; done";
        let command = child::command(Path::new("/bin/sh"), vec!["-c".into(), script.into(), stop.clone().into()]);
        let command = Command { standard_output: Output::Open(Arc::clone(&claim)), ..command };
        let child = child::start(command, b"").unwrap();
        drop(claim);
        assert!(take(place.path()).unwrap().is_none(), "the child holds it");
        std::fs::write(stop, "").unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_free(place.path()).unwrap() {
            assert!(Instant::now() < deadline, "the claim stays");
        }
        drop(child);
    }
}
