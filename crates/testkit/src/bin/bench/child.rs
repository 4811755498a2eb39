//! A process that is measured.

use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polis_sys::{Bond, ChildProcess, Command, Importance, Input, Output};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::BenchError;

/// Time between two attempts to reach a process that is starting.
pub(crate) const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// How long any process may take to be ready, or to end: far more than what is measured, so that a hang is an error.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process that was started, with an environment of its own. It ends with this process.
pub(crate) struct Child {
    process: AsyncFd<ChildProcess>,
    name: String,
    log: JoinHandle<Vec<u8>>,
}

impl Child {
    /// Starts a program. Its standard error is read all the time, so that it never waits for this process, and is written to
    /// `copy` too, if there is one.
    pub(crate) async fn start(
        program: &Path,
        arguments: Vec<OsString>,
        working_directory: Option<PathBuf>,
        copy: Option<File>,
    ) -> Result<Self, BenchError> {
        let name = program.display().to_string();
        let command = Command {
            program: program.to_owned(),
            arguments,
            environment: Vec::new(),
            working_directory,
            standard_input: Input::Nothing,
            standard_output: Output::Discard,
            standard_error: Output::Pipe,
            importance: Importance::default(),
            bond: Bond::default(),
        };
        let (reply, spawned) = oneshot::channel();
        polis_sys::spawn(command, |child| {
            // Nobody listens when this program is being ended.
            let _ = reply.send(child);
        });
        let mut process = spawned.await??;
        let output = process.take_standard_error().ok_or("its standard error is not connected")?;
        let log = tokio::spawn(read_log(output, copy));
        Ok(Self { process: process.register()?, name, log })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.get_ref().id()
    }

    /// Waits for something that this process must do before it ends.
    pub(crate) async fn until<T>(&mut self, what: &str, done: impl Future<Output = T>) -> Result<T, BenchError> {
        let done = tokio::select! {
            done = timeout(PATIENCE, done) => Some(done),
            _ = self.process.readable() => None,
        };
        match done {
            Some(done) => done.map_err(|_| format!("{}: not {what} after {PATIENCE:?}", self.name).into()),
            None => {
                let log = (&mut self.log).await?;
                Err(format!("{} ended before it was {what}: {}", self.name, String::from_utf8_lossy(&log)).into())
            }
        }
    }

    /// Ends it with SIGKILL and returns what it has logged.
    pub(crate) async fn kill(self) -> Result<String, BenchError> {
        self.send_kill();
        self.ended().await
    }

    /// Sends SIGKILL, and does not wait.
    pub(crate) fn send_kill(&self) {
        self.process.get_ref().kill_group();
    }

    /// Asks it to end, and does not wait.
    pub(crate) fn send_terminate(&self) -> Result<(), BenchError> {
        Ok(self.process.get_ref().signal(Signal::TERM)?)
    }

    /// Waits until it has ended, and returns what it has logged.
    pub(crate) async fn ended(mut self) -> Result<String, BenchError> {
        let ended = timeout(PATIENCE, self.process.readable()).await;
        ended.map_err(|_| format!("{} has not ended after {PATIENCE:?}", self.name))??.retain_ready();
        self.process.get_mut().try_wait()?;
        Ok(String::from_utf8_lossy(&self.log.await?).into_owned())
    }
}

/// Reads to the end.
async fn read_log(output: OwnedFd, mut copy: Option<File>) -> Vec<u8> {
    let mut text = Vec::new();
    let Ok(mut output) = pipe::Receiver::from_owned_fd(output) else { return text };
    let mut read = 0;
    // What was read before a failure is worth having.
    while output.read_buf(&mut text).await.is_ok_and(|length| length > 0) {
        if let Some(file) = &mut copy {
            // The copy is for people; the measurement does not depend on it.
            let _ = file.write_all(&text[read..]);
        }
        read = text.len();
    }
    text
}
