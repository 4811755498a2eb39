//! The tree of runnables of a node: who runs, who died, who is started again.
//!
//! Metropolis' model (metropolis.md A) with its weak places mended. A *runnable* is a function of a [`Context`] that
//! returns a result. Runnables form a tree; each has a name, and its distinguished name is the path from `root`.
//!
//! ```
//! # use polis_supervisor::{Supervisor, Context, runnable};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let supervisor = Supervisor::builder().start(runnable(|context| async move {
//!     context.run("worker", runnable(|context| async move {
//!         context.healthy();
//!         Err(context.cancelled().await.into())
//!     }))?;
//!     context.healthy();
//!     context.done();
//!     Ok(())
//! }));
//! supervisor.observer().wait_until(|dump| dump.len() == 2).await;
//! supervisor.shutdown().await.unwrap();
//! # });
//! ```
//!
//! # What it promises
//!
//! * **Names** keep an anchored rule ([`is_valid_name`]). Children and sub-loggers of one parent never share a name.
//! * **States and signals.** A runnable begins [`New`](State::New); only then may it start children. It signals
//!   [`healthy`](Context::healthy) and may later signal [`done`](Context::done), after which it may return `Ok`. A
//!   signal that is not allowed is its death. A runnable that signalled Done has ended only when it returns.
//! * **Death.** Every other way to return is death: an error, `Ok` without Done, a panic anywhere in it (also in its
//!   tasks, its blocking closures, its output functions, or while its future is made or dropped). Message, place and
//!   causes are logged under its name and kept as its last error. Ok or [`Cancelled`] after its context was cancelled is
//!   no death, and neither is [`BeginAnew`], with which a runnable asks for its next life.
//! * **Groups.** When a member dies, all members are cancelled with everything below them. When nothing of them runs any
//!   more and the backoff of the one that died is over, all are started, in one step. A parent never hears of it.
//! * **Backoff.** Grows with every death; reset when a runnable has stayed healthy for longer than its backoff. There
//!   is no last try. A runnable that dies again and again is named in the condition [`RESTARTS_OFTEN`].
//! * **Stopping.** A runnable that does not stop within its deadline is named in the condition [`DOES_NOT_STOP`] and
//!   after a grace it is aborted. Its tasks, closures and processes count: only when nothing is left of one life does
//!   the next begin.
//! * **Quiet.** The loop sleeps until something happens. When nothing is pending there is no timer.
//! * **Processes** ([`Context::process`]) get an environment that is built for them, an orderly stop, then a kill, and
//!   never outlive this process, also when it gets SIGKILL.
//!
//! What it cannot do: a runnable that spins without awaiting holds a worker thread of the runtime for ever. It is named;
//! the others go on as long as the runtime has another worker.
//!
//! # How it is built
//!
//! All decisions are made by a state machine without I/O (`core`); the loop (`driver`) carries them out in order and
//! under no lock. This crate knows nothing of what the runnables do.

#![forbid(unsafe_code)]

mod backoff;
mod context;
mod core;
mod driver;
mod life;
mod name;
mod panics;
mod process;
mod report;
mod runnable;
mod settings;
mod shared;
mod supervisor;
pub mod testing;

pub use crate::backoff::{Backoff, BackoffSettings};
pub use crate::context::Context;
pub use crate::core::{MAX_CHILDREN, MAX_DEPTH, MAX_RUNNABLES, RESTART_WINDOW, RESTARTS_COUNTED, StartError};
pub use crate::driver::{DOES_NOT_STOP, RESTARTS_OFTEN};
pub use crate::name::{MAX_NAME_LENGTH, is_valid_name};
pub use crate::process::{
    ExitStatus, Importance, MAX_LINE_LENGTH, OutputSink, PROCESS_STOP_DEADLINE, Process, ProcessSpec, Signal,
    SpawnError, UnexpectedExit,
};
pub use crate::report::{Metrics, NodeReport, State, Transition};
pub use crate::runnable::{
    BeginAnew, BoxError, Cancelled, Runnable, RunnableResult, SharedRunnable, is_cancellation, runnable, with_causes,
};
pub use crate::settings::Settings;
pub use crate::supervisor::{Builder, Observer, ROOT_NAME, StillRunning, Supervisor};
