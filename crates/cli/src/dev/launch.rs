//! How a process becomes a node only after it was recorded.
//!
//! `up` and `start` run `polis dev launch -- node run ...`. That process makes a session of its own, so that neither the
//! end of the terminal nor Ctrl-C in it reaches the node, and then waits for a line on its standard input. The parent
//! writes the process into the record and only then sends the line; if the parent dies before, the input ends, and so does
//! this process. The node takes this process' place (execve), so id and start time stay those that were recorded.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use super::process::ProcessIdentity;
use crate::arguments::DevLaunchArguments;
use crate::failure::Failure;

/// The command that waits.
const WAITS: [&str; 2] = ["dev", "launch"];

/// What the parent sends once the process is recorded.
const GO: &[u8] = b"go\n";

#[expect(clippy::disallowed_methods, reason = "this process becomes the node; it starts no other")]
pub(super) fn run(arguments: &DevLaunchArguments) -> Result<ExitCode, Failure> {
    let failed = |error: &io::Error| Failure::failed("the process could not become a node").because(error);
    rustix::process::setsid().map_err(|error| failed(&error.into()))?;
    let mut word = [0; GO.len()];
    if io::stdin().read_exact(&mut word).is_err() || word != GO {
        return Err(
            Failure::failed("the node was not started").because_of("the command that was to record it has ended")
        );
    }
    let binary = std::env::current_exe().map_err(|error| failed(&error))?;
    Err(failed(&Command::new(binary).args(&arguments.arguments).stdin(Stdio::null()).exec()))
}

/// Whether the process, if it is there, is one that waits to become a node. When this is asked under the lock of the cluster's
/// directory, nobody will let it go on any more.
pub(super) fn is_waiting(process: &ProcessIdentity) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    line.split(|byte| *byte == 0).skip(1).take(2).eq(WAITS.map(str::as_bytes))
}

/// A process that waits to become a node.
#[derive(Debug)]
pub(super) struct Waiting {
    child: Child,
    /// Who it is, for the record.
    pub(super) identity: ProcessIdentity,
}

impl Waiting {
    /// Starts a process that will be `binary` with `arguments` and writes to `log`.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    #[expect(
        clippy::disallowed_methods,
        reason = "the node outlives the command that starts it, with the environment of whoever tries it"
    )]
    pub(super) fn start(binary: &Path, arguments: &[std::ffi::OsString], log: &File) -> io::Result<Self> {
        let child = Command::new(binary)
            .args(WAITS)
            .arg("--")
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()?;
        // The child waits for us, so it is there; when it could not be looked at, dropping its input ends it.
        let identity = ProcessIdentity::of(child.id())?;
        Ok(Self { child, identity })
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub(super) fn go(mut self) -> io::Result<Child> {
        if let Some(mut input) = self.child.stdin.take() {
            input.write_all(GO)?;
        }
        Ok(self.child)
    }
}
