//! How a process ended, in words.

use std::fmt;

use rustix::process::{Signal, WaitIdStatus};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It ended by itself with this exit code; 0 is success.
    Exited {
        /// The exit code, 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// The number of the signal.
        signal: i32,
        /// Whether a core file was written.
        core_dumped: bool,
    },
}

impl ExitStatus {
    /// The end of a process that was ended by SIGKILL.
    pub const KILLED: Self = Self::Signaled { signal: Signal::KILL.as_raw(), core_dumped: false };

    /// True when the process ended by itself with exit code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited { code: 0 }
    }

    /// The status that `waitid` returned for a process that has ended; `None` for one that only stopped or continued.
    pub(crate) fn from_wait(status: &WaitIdStatus) -> Option<Self> {
        if let Some(code) = status.exit_status() {
            return Some(Self::Exited { code });
        }
        status.terminating_signal().map(|signal| Self::Signaled { signal, core_dumped: status.dumped() })
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited { code } => write!(formatter, "exit code {code}"),
            Self::Signaled { signal, core_dumped } => {
                match signal_name(signal) {
                    Some(name) => write!(formatter, "ended by signal {name}")?,
                    None => write!(formatter, "ended by signal {signal}")?,
                }
                if core_dumped { formatter.write_str(", core file written") } else { Ok(()) }
            }
        }
    }
}

/// The name of a signal such as `SIGTERM`; `None` for real-time and unknown signals.
#[must_use]
pub fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: &[(Signal, &str)] = &[
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::STKFLT, "SIGSTKFLT"),
        (Signal::CHILD, "SIGCHLD"),
        (Signal::CONT, "SIGCONT"),
        (Signal::STOP, "SIGSTOP"),
        (Signal::TSTP, "SIGTSTP"),
        (Signal::TTIN, "SIGTTIN"),
        (Signal::TTOU, "SIGTTOU"),
        (Signal::URG, "SIGURG"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::WINCH, "SIGWINCH"),
        (Signal::IO, "SIGIO"),
        (Signal::POWER, "SIGPWR"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_in_words() {
        for (status, words) in [
            (ExitStatus::Exited { code: 0 }, "exit code 0"),
            (ExitStatus::Exited { code: 127 }, "exit code 127"),
            (ExitStatus::KILLED, "ended by signal SIGKILL"),
            (
                ExitStatus::Signaled { signal: Signal::SEGV.as_raw(), core_dumped: true },
                "ended by signal SIGSEGV, core file written",
            ),
            (ExitStatus::Signaled { signal: 40, core_dumped: false }, "ended by signal 40"),
        ] {
            assert_eq!(status.to_string(), words);
        }
    }

    #[test]
    fn only_exit_code_0_is_success() {
        assert!(ExitStatus::Exited { code: 0 }.is_success());
        assert!(!ExitStatus::Exited { code: 1 }.is_success());
        assert!(!ExitStatus::KILLED.is_success());
    }
}
