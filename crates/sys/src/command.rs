//! What is to be started, and why it could not be.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the standard input of a child comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// From `/dev/null`.
    #[default]
    Nothing,
    /// From a pipe that the [`ChildProcess`](crate::ChildProcess) gives the writing end of: the way for a secret.
    Pipe,
}

/// Where one output stream of a child goes.
#[derive(Clone, Debug)]
pub enum Output {
    /// To `/dev/null`.
    Discard,
    /// To a pipe that the [`ChildProcess`](crate::ChildProcess) gives the reading end of.
    Pipe,
    /// To a socket that keeps each write apart, and that the [`ChildProcess`](crate::ChildProcess) gives the reading end of. When
    /// nobody can read any more, a write fails, and unlike that to a pipe it does not end the child by SIGPIPE: for a child that
    /// [lives on](Bond::LivesOn). Its end is no end of the stream.
    Datagrams,
    /// To this file or directory, which the child holds open as long as it lives, with a lock that is on it (flock(2)).
    Open(Arc<OwnedFd>),
}

/// What becomes of a child when this process ends before it, or drops its [`ChildProcess`](crate::ChildProcess).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bond {
    /// It is killed at once, also when this process is.
    #[default]
    DiesWithUs,
    /// It lives on: for a child that would lose data by being killed, and that ends by itself when nobody needs it any more. It
    /// must not write to a pipe, which would end it.
    LivesOn,
}

/// How much a child matters to the kernel when memory or the disk is short. What this process is not allowed to give is
/// left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Importance {
    /// From -1000 (never killed for memory) to 1000 (killed first); `None` as this process. To lower it needs a privilege.
    pub out_of_memory_score: Option<i16>,
    /// Level of its disk accesses in the class of ordinary ones, from 0 (first) to 7 (last); `None` as this process.
    pub disk_level: Option<u8>,
}

/// A program to be started as a child process. `Debug` shows the names of the environment's variables and not their values,
/// which may be secret.
#[derive(Clone)]
pub struct Command {
    /// Absolute path of the program. No search in `PATH`: what runs must not depend on an inherited environment.
    pub program: PathBuf,
    /// The arguments after the program's name.
    pub arguments: Vec<OsString>,
    /// The complete environment of the child: nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory the child starts in; `None` is `/`.
    pub working_directory: Option<PathBuf>,
    /// Where its standard input comes from.
    pub standard_input: Input,
    /// Where its standard output goes.
    pub standard_output: Output,
    /// Where its standard error goes.
    pub standard_error: Output,
    /// How much it matters.
    pub importance: Importance,
    /// What becomes of it without this process.
    pub bond: Bond,
}

impl fmt::Debug for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        formatter
            .debug_struct("Command")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("environment", &names)
            .field("working_directory", &self.working_directory)
            .field("standard_input", &self.standard_input)
            .field("standard_output", &self.standard_output)
            .field("standard_error", &self.standard_error)
            .field("importance", &self.importance)
            .field("bond", &self.bond)
            .finish()
    }
}

/// Why a child process could not be started. No child is left behind in any of these cases.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program's path is not absolute.
    #[error("cannot start {}: the path of a program must be absolute, no search path is used", program.display())]
    RelativeProgram {
        /// The path that was given.
        program: PathBuf,
    },
    /// The working directory is missing or is not a directory that may be entered.
    #[error("cannot start {} in the directory {}", program.display(), directory.display())]
    WorkingDirectory {
        /// The program that was to be started.
        program: PathBuf,
        /// The directory it was to be started in.
        directory: PathBuf,
        /// What the system said about the directory.
        #[source]
        source: io::Error,
    },
    /// The system refused to make the process or to execute the program.
    #[error("cannot start {}", program.display())]
    Execute {
        /// The program that was to be started.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The child was made, but the handle to wait for it was not; it was killed.
    #[error("cannot watch the process made for {}, so it was killed", program.display())]
    Watch {
        /// The program that was to be started.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The one thread that makes children could not be made, or a full queue of requests waits before it.
    #[error("cannot start {}: {reason}", program.display())]
    Spawner {
        /// The program that was to be started.
        program: PathBuf,
        /// What keeps the spawner from doing it.
        reason: &'static str,
    },
}

impl SpawnError {
    /// The program that was to be started.
    #[must_use]
    pub fn program(&self) -> &Path {
        match self {
            Self::RelativeProgram { program }
            | Self::WorkingDirectory { program, .. }
            | Self::Execute { program, .. }
            | Self::Watch { program, .. }
            | Self::Spawner { program, .. } => program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value_of_the_environment() {
        let command = Command {
            program: "/bin/true".into(),
            arguments: Vec::new(),
            environment: vec![("HTTPS_PROXY".into(), "http://polis:token@127.0.0.1:1".into())],
            working_directory: None,
            standard_input: Input::Nothing,
            standard_output: Output::Discard,
            standard_error: Output::Discard,
            importance: Importance::default(),
            bond: Bond::default(),
        };
        let text = format!("{command:?}");
        assert!(text.contains("HTTPS_PROXY") && !text.contains("token"), "{text}");
    }
}
