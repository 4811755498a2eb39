//! Which children are ours: those that somebody here waits for, from before they can end until they are reaped.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// The process ids of children that are not reaped yet.
#[derive(Debug, Default)]
pub(crate) struct OwnChildren(BTreeSet<i32>);

impl OwnChildren {
    pub(crate) fn insert(&mut self, pid: Pid) {
        self.0.insert(pid.as_raw_nonzero().get());
    }

    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.0.contains(&pid.as_raw_nonzero().get())
    }
}

static OWN: Mutex<OwnChildren> = Mutex::new(OwnChildren(BTreeSet::new()));

/// The set. While it is held no child is made, and none is reaped.
pub(crate) fn lock() -> MutexGuard<'static, OwnChildren> {
    // A set of numbers is whole whatever its holder did.
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps an own child that has ended. Its process id may belong to somebody else right after, so both happen as one step.
pub(crate) fn reap(pid: Pid, pidfd: &OwnedFd) -> io::Result<()> {
    let mut own = lock();
    let reaped = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    own.0.remove(&pid.as_raw_nonzero().get());
    reaped.map(drop).map_err(io::Error::from)
}
