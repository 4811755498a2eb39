//! The task of a child process: signals, deadline, kill, end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use polis_sys::{Bond, ChildProcess, Command, ExitStatus, Input, Signal, SpawnError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Process;
use super::output::{carry, output};
use super::spec::{OutputSink, ProcessSpec};
use crate::context::Context;
use crate::life::Life;

/// Signals that wait to be sent.
const SIGNALS_QUEUED: usize = 16;

/// How long the output is still read after the process has ended and its group was killed. Only a process that left
/// the group can hold it open, and that one is not ours to wait for.
const OUTPUT_DRAIN: Duration = Duration::from_secs(1);

/// Starts a process and the task that sees to it. The life is not over before the process is.
pub(super) fn start(life: &Arc<Life>, spec: ProcessSpec, started: oneshot::Sender<Result<Process, SpawnError>>) {
    let command = Command {
        program: spec.program.clone(),
        arguments: spec.arguments,
        environment: spec.environment,
        working_directory: spec.working_directory,
        standard_input: Input::Nothing,
        standard_output: output(&spec.standard_output),
        standard_error: output(&spec.standard_error),
        importance: spec.importance,
        bond: Bond::default(),
    };
    let (reply, spawned) = oneshot::channel();
    let watched = Watched {
        program: spec.program.display().to_string(),
        stop_signal: spec.stop_signal,
        stop_deadline: spec.stop_deadline,
        kill: life.kill.child_token(),
        stop: CancellationToken::new(),
    };
    let sinks = [spec.standard_output, spec.standard_error];
    let owner = Arc::clone(life);
    life.detach(async move {
        // The spawner's reply comes always. It is awaited even when the life ends meanwhile: only then is it known
        // that no process is left.
        match spawned.await {
            Ok(Ok(child)) => watched.run(owner, child, sinks, started).await,
            Ok(Err(error)) => {
                // Who asked may have gone.
                let _ = started.send(Err(error));
            }
            Err(_) => {}
        }
    });
    polis_sys::spawn(command, move |result| {
        // If the runtime is gone this drops the process, which kills it.
        let _ = reply.send(result);
    });
}

/// A process that is watched.
struct Watched {
    program: String,
    stop_signal: Signal,
    stop_deadline: Duration,
    kill: CancellationToken,
    stop: CancellationToken,
}

impl Watched {
    async fn run(
        self,
        life: Arc<Life>,
        mut child: ChildProcess,
        sinks: [OutputSink; 2],
        started: oneshot::Sender<Result<Process, SpawnError>>,
    ) {
        let outputs = TaskTracker::new();
        let close = CancellationToken::new();
        let streams = [child.take_standard_output(), child.take_standard_error()];
        for (stream, sink) in streams.into_iter().zip(sinks) {
            if let Some(stream) = stream {
                self.carry(&life, &outputs, &close, sink, stream);
            }
        }
        outputs.close();
        let (exit_sender, exit) = watch::channel(None);
        let (signals, mut queued) = mpsc::channel(SIGNALS_QUEUED);
        let process = Process {
            id: child.id(),
            program: self.program.clone(),
            exit,
            stop: self.stop.clone(),
            signals,
            _kill: self.kill.clone().drop_guard(),
        };
        // If nobody takes it, it is dropped here, and so killed.
        drop(started.send(Ok(process)));
        let status = match self.until_ended(child, &mut queued).await {
            Ok(status) => status,
            Err(error) => {
                Context::new(life)
                    .logger()
                    .error(format!("cannot wait for {}, so it was killed: {error}", self.program));
                ExitStatus::KILLED
            }
        };
        // What is not read by then is held open by a process that is none of ours.
        let _ = timeout(OUTPUT_DRAIN, outputs.wait()).await;
        close.cancel();
        exit_sender.send_replace(Some(status));
    }

    /// Reads a stream in a task of its own, which the death of the runnable does not end: what a process says last is
    /// often the reason.
    fn carry(
        &self,
        life: &Arc<Life>,
        outputs: &TaskTracker,
        close: &CancellationToken,
        sink: OutputSink,
        stream: OwnedFd,
    ) {
        let (program, token, close) = (self.program.clone(), outputs.token(), close.clone());
        let context = Context::new(Arc::clone(life));
        life.detach(async move {
            let _token = token;
            let result = tokio::select! {
                biased;
                result = carry(&context, sink, stream) => result,
                () = close.cancelled() => Ok(()),
            };
            if let Err(error) = result {
                context.logger().warning(format!("cannot read the output of {program}: {error}"));
            }
        });
    }

    /// Waits for the end of the process, and brings it about when that is wanted. An error drops it, which kills it.
    async fn until_ended(&self, child: ChildProcess, queued: &mut mpsc::Receiver<Signal>) -> io::Result<ExitStatus> {
        let mut child = child.register()?;
        let (mut killed, mut stopping, mut deadline) = (false, false, None);
        loop {
            tokio::select! {
                biased;
                ready = child.readable_mut() => {
                    let mut ready = ready?;
                    if let Some(status) = ready.get_inner_mut().try_wait()? {
                        return Ok(status);
                    }
                    ready.clear_ready();
                }
                () = self.kill.cancelled(), if !killed => {
                    killed = true;
                    child.get_ref().kill_group();
                }
                () = past(deadline), if deadline.is_some() && !killed => {
                    killed = true;
                    child.get_ref().kill_group();
                }
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    deadline = Some(Instant::now() + self.stop_deadline);
                    child.get_ref().signal(self.stop_signal)?;
                }
                Some(signal) = queued.recv() => child.get_ref().signal(signal)?,
            }
        }
    }
}

async fn past(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
