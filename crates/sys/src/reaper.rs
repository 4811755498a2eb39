//! Reaps children whose handle was dropped, so that no zombies stay and no caller blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Children that wait to be reaped. A killed child is reaped within milliseconds; with a full queue the caller reaps.
const QUEUE: usize = 64;

/// Reaps a child that has been killed, on a thread made for it.
pub(crate) fn reap(pidfd: Arc<OwnedFd>) {
    static REAPER: OnceLock<Option<SyncSender<Arc<OwnedFd>>>> = OnceLock::new();
    let reaper = REAPER.get_or_init(|| {
        let (sender, receiver) = sync_channel(QUEUE);
        thread::Builder::new().name("process-reaper".into()).spawn(move || run(&receiver)).ok().map(|_| sender)
    });
    let unsent = match reaper {
        Some(sender) => sender.try_send(pidfd).err().map(|error| match error {
            TrySendError::Full(pidfd) | TrySendError::Disconnected(pidfd) => pidfd,
        }),
        None => Some(pidfd),
    };
    if let Some(pidfd) = unsent {
        wait(&pidfd);
    }
}

fn run(receiver: &Receiver<Arc<OwnedFd>>) {
    while let Ok(pidfd) = receiver.recv() {
        wait(&pidfd);
    }
}

fn wait(pidfd: &OwnedFd) {
    // An error means that the child has been reaped already, or that it never can be: nothing is left to do.
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {}
}
