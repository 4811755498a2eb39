//! Reaps children whose handle was dropped, so that no zombies stay and no caller blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::own_children;

/// Children that wait to be reaped. A killed child is reaped within milliseconds; with a full queue the caller reaps.
const QUEUE: usize = 64;

/// A child that is to be reaped: its process id, and the handle that it is waited for through.
type Killed = (Pid, Arc<OwnedFd>);

/// Reaps a child that has been killed, on a thread made for it.
pub(crate) fn reap(pid: Pid, pidfd: Arc<OwnedFd>) {
    static REAPER: OnceLock<Option<SyncSender<Killed>>> = OnceLock::new();
    let reaper = REAPER.get_or_init(|| {
        let (sender, receiver) = sync_channel(QUEUE);
        thread::Builder::new().name("process-reaper".into()).spawn(move || run(&receiver)).ok().map(|_| sender)
    });
    let unsent = match reaper {
        Some(sender) => sender.try_send((pid, pidfd)).err().map(|error| match error {
            TrySendError::Full(killed) | TrySendError::Disconnected(killed) => killed,
        }),
        None => Some((pid, pidfd)),
    };
    if let Some(killed) = unsent {
        wait(&killed);
    }
}

/// Reaps a child that lives on when it has ended. It gets a thread of its own, as nobody knows when that is; without one it stays
/// unreaped until this process ends.
pub(crate) fn reap_in_its_time(pid: Pid, pidfd: Arc<OwnedFd>) {
    let _ = thread::Builder::new().name("process-reaper".into()).spawn(move || wait(&(pid, pidfd)));
}

fn run(receiver: &Receiver<Killed>) {
    while let Ok(killed) = receiver.recv() {
        wait(&killed);
    }
}

fn wait((pid, pidfd): &Killed) {
    // Waited for first and reaped then: no lock may be held while something is waited for.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::PidFd(pidfd.as_fd()), ended) {}
    // An error means that the child has been reaped already, or that it never can be: nothing is left to do.
    let _ = own_children::reap(*pid, pidfd);
}
