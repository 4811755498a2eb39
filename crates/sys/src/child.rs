//! A child process that was started by the spawner.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::command::Bond;
use crate::exit_status::ExitStatus;
use crate::{own_children, reaper};

/// A child process, the leader of its own process group. Dropping it kills the group, unless its [`Bond`] says otherwise, and
/// reaps the child.
///
/// Its file descriptor ([`AsRawFd`]) is its pidfd, which becomes readable when the child has ended. It stays open as
/// long as this value lives, so it may be registered with a poller.
#[derive(Debug)]
pub struct ChildProcess {
    pid: Pid,
    pidfd: Arc<OwnedFd>,
    bond: Bond,
    /// How it ended; present once it was reaped.
    exit_status: Option<ExitStatus>,
    standard_input: Option<OwnedFd>,
    standard_output: Option<OwnedFd>,
    standard_error: Option<OwnedFd>,
}

impl ChildProcess {
    pub(crate) fn new(
        pid: Pid,
        pidfd: OwnedFd,
        bond: Bond,
        standard_input: Option<OwnedFd>,
        standard_output: Option<OwnedFd>,
        standard_error: Option<OwnedFd>,
    ) -> Self {
        let (pidfd, exit_status) = (Arc::new(pidfd), None);
        Self { pid, pidfd, bond, exit_status, standard_input, standard_output, standard_error }
    }

    /// The process id, which is the id of the process group too.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The writing end of the child's standard input, the first time, if it comes from a pipe. The child reads the end of
    /// its input when this is dropped.
    pub fn take_standard_input(&mut self) -> Option<OwnedFd> {
        self.standard_input.take()
    }

    /// The reading end of the child's standard output, the first time, if it goes to a pipe or comes as datagrams.
    pub fn take_standard_output(&mut self) -> Option<OwnedFd> {
        self.standard_output.take()
    }

    /// The reading end of the child's standard error, the first time, if it goes to a pipe or comes as datagrams.
    pub fn take_standard_error(&mut self) -> Option<OwnedFd> {
        self.standard_error.take()
    }

    /// Registers the pidfd with the runtime that this is called in: it is readable when the child has ended.
    ///
    /// # Errors
    ///
    /// What the system says; the child is killed then.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: `as_raw_fd` always returns the same descriptor, which is owned by a field that is never replaced and
        // only dropped with `self`.
        let registered = unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) };
        registered.map_err(|error| error.into_parts().1)
    }

    /// Sends a signal to the child only. Nothing happens when it has ended.
    ///
    /// # Errors
    ///
    /// What the system says, for example when the child has changed to a user that we may not signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match process::pidfd_send_signal(&*self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends SIGKILL to the child's whole process group. Nothing happens once the child was reaped.
    pub fn kill_group(&self) {
        // While the child is not reaped its id is taken, so the group cannot be a stranger's. The only error possible
        // for a group of ours is that nothing is left in it.
        if self.exit_status.is_none() {
            let _ = process::kill_process_group(self.pid, Signal::KILL);
        }
    }

    /// How the child ended, or `None` while it runs. The first call after its end kills what is left of its process
    /// group, and only then reaps it.
    ///
    /// # Errors
    ///
    /// What the system says, for example when somebody else has reaped the child.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.exit_status.is_some() {
            return Ok(self.exit_status);
        }
        let pidfd = WaitId::PidFd(self.pidfd.as_fd());
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = process::waitid(pidfd, look)?.as_ref().and_then(ExitStatus::from_wait) else {
            return Ok(None);
        };
        self.kill_group();
        own_children::reap(self.pid, &self.pidfd)?;
        self.exit_status = Some(status);
        Ok(self.exit_status)
    }
}

impl AsRawFd for ChildProcess {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl AsFd for ChildProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if self.exit_status.is_some() {
            return;
        }
        match self.bond {
            Bond::DiesWithUs => {
                self.kill_group();
                reaper::reap(self.pid, Arc::clone(&self.pidfd));
            }
            Bond::LivesOn => reaper::reap_in_its_time(self.pid, Arc::clone(&self.pidfd)),
        }
    }
}
