//! Processes that are known beyond doubt.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Names one process among all that ever ran on this machine: ids are used again, but not with the same start time in
/// the same boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pub(super) pid: u32,
    /// Start time, in clock ticks since the boot: field 22 of `/proc/PID/stat` (proc_pid_stat(5)).
    start_time_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`, which is new with every boot.
    boot_id: String,
}

/// A process that was running when it was opened. Signals reach it or nobody, as they go through a pidfd.
#[derive(Debug)]
pub(super) struct RunningProcess {
    descriptor: OwnedFd,
}

impl ProcessIdentity {
    /// The identity of a process that is there now.
    ///
    /// # Errors
    ///
    /// When it is gone, or `/proc` is not mounted.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, start_time_ticks: Stat::read(pid)?.start_time_ticks, boot_id: boot_id()? })
    }

    /// Opens the process; `None` when it has ended.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn open(&self) -> io::Result<Option<RunningProcess>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Only now is it certain that what is looked at is what was opened.
        let process = RunningProcess { descriptor };
        Ok(if self.matches()? && !process.wait(Duration::ZERO)? { Some(process) } else { None })
    }

    /// Whether the process still runs. One whose first thread has ended while others are still ending does; one that is
    /// only not yet reaped by its parent does not.
    pub(super) fn is_running(&self) -> bool {
        self.open().is_ok_and(|process| process.is_some())
    }

    /// Whether the process that has the id now is this one.
    fn matches(&self) -> io::Result<bool> {
        if boot_id()? != self.boot_id {
            return Ok(false);
        }
        match Stat::read(self.pid) {
            Ok(stat) => Ok(stat.start_time_ticks == self.start_time_ticks),
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Reading `/proc/PID/stat` of a process that ends at the same time gives ESRCH.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

impl RunningProcess {
    /// Sends a signal; one that has ended needs none.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, at most for `longest`; whether it has.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn wait(&self, longest: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + longest;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut descriptors, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The part of `/proc/PID/stat` that matters here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    start_time_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {text:?}")))
    }

    /// The name of the program stands in parentheses and may itself contain some, so the fields are counted from the last.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        // The first of these is field 3.
        let start_time_ticks = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
        Some(Self { start_time_ticks })
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_of_programs_do_not_confuse() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        let stat = Some(Stat { start_time_ticks: 4242 });
        assert_eq!(Stat::parse(&format!("77 (polis) {rest}")), stat);
        assert_eq!(Stat::parse(&format!("77 (a) R 1 (b c) {rest}")), stat);
        assert_eq!(Stat::parse("77 (polis) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_is_ended_and_known_to_be_gone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        let process = identity.open().unwrap().unwrap();
        assert!(identity.is_running());
        assert!(!process.wait(Duration::from_millis(1)).unwrap());

        process.signal(Signal::KILL).unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        assert!(!identity.is_running(), "a zombie does not run");
        assert!(identity.open().unwrap().is_none());
        child.wait().unwrap();
        assert!(identity.open().unwrap().is_none());
        process.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn another_process_with_the_same_id_is_not_mistaken() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(own.is_running());
        let earlier = ProcessIdentity { start_time_ticks: own.start_time_ticks - 1, ..own.clone() };
        let other_boot = ProcessIdentity { boot_id: "another".into(), ..own.clone() };
        let no_process = ProcessIdentity { pid: u32::MAX, ..own };
        for wrong in [earlier, other_boot, no_process] {
            assert!(!wrong.is_running());
            assert!(wrong.open().unwrap().is_none());
        }
    }
}
