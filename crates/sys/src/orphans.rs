//! Children of others that this process has inherited.

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::exit_status::ExitStatus;
use crate::own_children;

/// What [`reap_orphan`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphan {
    /// One that had ended and was reaped now.
    Reaped {
        /// The process id it had.
        id: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// A child that somebody here waits for has ended and is in front: it will be reaped by whom it belongs to, and only then
    /// can be seen what is behind it.
    BehindOwnChild,
    /// No child has ended that is not reaped.
    None,
}

/// Reaps one child that nobody here waits for, if there is one that has ended. Never takes the exit status of a
/// [`ChildProcess`](crate::ChildProcess) from its owner, and never blocks.
///
/// # Errors
///
/// What the system says.
pub fn reap_orphan() -> io::Result<Orphan> {
    let own = own_children::lock();
    let Some(pid) = first_that_ended()? else { return Ok(Orphan::None) };
    if own.contains(pid) {
        return Ok(Orphan::BehindOwnChild);
    }
    let reaped = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    let id = pid.as_raw_nonzero().get().unsigned_abs();
    Ok(match reaped.as_ref().and_then(ExitStatus::from_wait) {
        Some(status) => Orphan::Reaped { id, status },
        None => Orphan::None,
    })
}

/// The process id of a child that has ended and is not reaped, and is not reaped by this either.
fn first_that_ended() -> io::Result<Option<Pid>> {
    // SAFETY: the structure is made of numbers and pointers that nobody follows, for which all zeros is a value.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes the structure, which lives through the call.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, options) } == 0 {
        // SAFETY: `waitid` fills in the member for children, or leaves the zeros, and zero is no process id.
        return Ok(Pid::from_raw(unsafe { found.si_pid() }));
    }
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        Some(Errno::CHILD | Errno::INTR) => Ok(None),
        Some(_) | None => Err(error),
    }
}

/// Sends SIGKILL to every process that this one may signal, except itself: what the first process of a machine does before it
/// unmounts disks.
///
/// # Errors
///
/// When this is not the first process of its process id namespace: any other would end what is none of its business.
pub fn kill_all_others() -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "only the first process of a machine ends all others",
        ));
    }
    // SAFETY: the call takes numbers only. From process 1 it reaches this process id namespace and nothing else.
    let result = unsafe { libc::kill(-1, libc::SIGKILL) };
    let error = io::Error::last_os_error();
    // Without another process there is nothing to kill.
    if result == 0 || error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}
