//! Child processes of a runnable.

mod driver;
mod output;
mod spec;

use std::sync::Arc;

pub use output::MAX_LINE_LENGTH;
pub use polis_sys::{ExitStatus, Importance, Signal, SpawnError};
pub use spec::{OutputSink, PROCESS_STOP_DEADLINE, ProcessSpec};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::context::Context;
use crate::life::Life;
use crate::runnable::{Cancelled, RunnableResult};

/// A child process. Dropping it kills the process and its group.
///
/// When the process ends by itself, what is left of its process group is killed too.
#[derive(Debug)]
pub struct Process {
    id: u32,
    program: String,
    exit: watch::Receiver<Option<ExitStatus>>,
    stop: CancellationToken,
    signals: tokio::sync::mpsc::Sender<Signal>,
    _kill: DropGuard,
}

/// A process ended although nobody asked it to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} (process {id}) ended by itself: {status}")]
pub struct UnexpectedExit {
    /// The program.
    pub program: String,
    /// Its process id.
    pub id: u32,
    /// How it ended.
    pub status: ExitStatus,
}

impl Process {
    /// Starts a process of this life.
    pub(crate) async fn start(life: &Arc<Life>, spec: ProcessSpec) -> Result<Self, SpawnError> {
        let program = spec.program.clone();
        let (started, receive) = oneshot::channel();
        driver::start(life, spec, started);
        // The driver answers always, unless the life ends, and then nobody is left to hear this.
        receive
            .await
            .unwrap_or(Err(SpawnError::Spawner { program, reason: "the runnable that asked for it has ended" }))
    }

    /// The process id, which is that of its process group too.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the process has ended and its output was delivered. May be called again.
    pub async fn wait(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        let status = exit.wait_for(Option::is_some).await;
        // Without its task, which the runtime drops only when it shuts down, the process was killed.
        status.ok().and_then(|status| *status).unwrap_or(ExitStatus::KILLED)
    }

    /// How the process ended; `None` while it runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Stops the process: sends it its stop signal, after its deadline SIGKILL to its whole group, and waits for its
    /// end.
    pub async fn stop(&self) -> ExitStatus {
        self.stop.cancel();
        self.wait().await
    }

    /// Sends a signal to the process itself, not to its group. Nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        // A full queue means that the process gets more signals than it can take; one more is no news to it.
        let _ = self.signals.try_send(signal);
    }

    /// Runs until the process ends, which is an error, or until the runnable is to stop, which stops the process.
    ///
    /// # Errors
    ///
    /// [`UnexpectedExit`] when the process ended by itself, [`Cancelled`] when the runnable was to stop.
    pub async fn supervise(self, context: &Context) -> RunnableResult {
        tokio::select! {
            biased;
            _ = context.cancelled() => {
                let status = self.stop().await;
                context.logger().info(format!("{} (process {}) was stopped: {status}", self.program, self.id));
                Err(Cancelled.into())
            }
            status = self.wait() => Err(UnexpectedExit { program: self.program.clone(), id: self.id, status }.into()),
        }
    }
}
