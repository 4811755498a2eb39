//! What a runnable is given: its name, its log, its children, its tasks and processes, and the wish that it stop.

use std::panic::resume_unwind;
use std::sync::Arc;

use polis_condition::Conditions;
use polis_logtree::{DistinguishedName, LogTree, Logger, RawWriter, runnable_span};
use tokio_util::sync::CancellationToken;

use crate::core::{SignalError, StartError};
use crate::life::Life;
use crate::process::{Process, ProcessSpec, SpawnError};
use crate::runnable::{Cancelled, Runnable, RunnableResult, SharedRunnable};
use crate::supervisor::Observer;

/// One life of a runnable, as the runnable sees it. Clones are the same life. A context that is kept after its life is
/// over is cancelled and can start nothing.
#[derive(Clone)]
pub struct Context {
    life: Arc<Life>,
}

impl Context {
    pub(crate) fn new(life: Arc<Life>) -> Self {
        Self { life }
    }

    /// Starts a child in a group of its own. Its death leaves this runnable and its other groups alone.
    ///
    /// # Errors
    ///
    /// See [`Context::run_group`].
    pub fn run(&self, name: impl Into<String>, runnable: impl Runnable) -> Result<(), StartError> {
        self.run_group([(name, SharedRunnable::new(runnable))])
    }

    /// Starts children that live and die together: when one dies the others are cancelled, and when all of them with
    /// everything below them have ended, and the backoff of the one that died is over, all are started together.
    ///
    /// # Errors
    ///
    /// When a name breaks the rule or is in use, when this runnable has signalled Healthy already, was cancelled or has
    /// ended, and at the limits [`MAX_CHILDREN`](crate::MAX_CHILDREN), [`MAX_DEPTH`](crate::MAX_DEPTH) and
    /// [`MAX_RUNNABLES`](crate::MAX_RUNNABLES). Then none of them is started.
    pub fn run_group<N: Into<String>>(
        &self,
        members: impl IntoIterator<Item = (N, SharedRunnable)>,
    ) -> Result<(), StartError> {
        self.refuse_strangers()?;
        let members = members.into_iter().map(|(name, runnable)| (name.into(), runnable)).collect();
        let life = &self.life;
        life.shared.tell(|tree, now| tree.run_group(life.key, &life.distinguished_name, members, now))
    }

    /// Signals that this runnable is up. After that it can start no more children. Its backoff is reset when it stays
    /// up for longer than that backoff.
    ///
    /// A second signal, or one in the name of another runnable, is the death of the runnable that gives it.
    pub fn healthy(&self) {
        self.signal(|life| life.shared.tell(|tree, now| tree.healthy(life.key, now)));
    }

    /// Signals that this runnable may return `Ok` without that being a failure. Valid once, after
    /// [`Context::healthy`]; otherwise it is the death of the runnable that gives it.
    pub fn done(&self) {
        self.signal(|life| life.shared.tell(|tree, _| tree.done(life.key)));
    }

    /// Waits until this runnable is to stop. The value that is returned makes an error of it: return it with `?` or
    /// `Err(context.cancelled().await.into())`.
    pub async fn cancelled(&self) -> Cancelled {
        self.life.cancel.cancelled().await;
        Cancelled
    }

    /// True when this runnable is to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.life.cancel.is_cancelled()
    }

    /// The output of `future`, or [`Cancelled`] when this runnable is to stop before that is there.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] and nothing else.
    pub async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Result<T, Cancelled> {
        tokio::select! {
            biased;
            () = self.life.cancel.cancelled() => Err(Cancelled),
            output = future => Ok(output),
        }
    }

    /// A token that is cancelled when this runnable is to stop, for code that knows no contexts. Cancelling it has no
    /// effect on this runnable.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.life.cancel.child_token()
    }

    /// The name of this runnable in the tree.
    #[must_use]
    pub fn distinguished_name(&self) -> &DistinguishedName {
        &self.life.distinguished_name
    }

    /// The log tree of the supervisor.
    #[must_use]
    pub fn log_tree(&self) -> &LogTree {
        &self.life.shared.log_tree
    }

    /// Logs under the name of this runnable. The macros of `tracing` do so too in the future and the tasks of a
    /// runnable.
    #[must_use]
    pub fn logger(&self) -> Logger {
        self.log_tree().logger(self.distinguished_name())
    }

    /// Writes raw lines under the name of this runnable.
    #[must_use]
    pub fn raw_logger(&self) -> RawWriter {
        self.log_tree().raw(self.distinguished_name())
    }

    /// Logs under a name below that of this runnable. The name is reserved: no child and no second sub-logger may have
    /// it in this life.
    ///
    /// # Errors
    ///
    /// When the name breaks the rule or is in use, or this life was cancelled or is over.
    pub fn sub_logger(&self, name: &str) -> Result<Logger, StartError> {
        self.refuse_strangers()?;
        let life = &self.life;
        life.shared.tell(|tree, _| tree.reserve(life.key, &life.distinguished_name, name))?;
        let name = life.distinguished_name.child(name);
        name.map(|name| self.log_tree().logger(&name))
            .map_err(|error| StartError::BadName(error.to_string(), life.distinguished_name.clone()))
    }

    /// The conditions of the supervisor.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        &self.life.shared.conditions
    }

    /// Sees the whole tree that this runnable is in.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer::new(Arc::clone(&self.life.shared))
    }

    /// Runs a task that belongs to this runnable: it is dropped when the runnable ends, the runnable is not started
    /// again before it is gone, and its panic or error is the death of the runnable. Its `Ok`, and its cancellation
    /// after the runnable was cancelled, mean nothing.
    pub fn spawn(&self, future: impl Future<Output = RunnableResult> + Send + 'static) {
        self.life.spawn(future);
    }

    /// Runs a closure that blocks on a thread for such, and waits for it. The runnable is not started again before it
    /// has ended, whether or not somebody still waits for it; nothing can stop it from outside.
    ///
    /// # Panics
    ///
    /// When the closure does, which is the death of the runnable as any panic is.
    #[expect(clippy::disallowed_methods, reason = "the closure is tracked, and its panic is the runnable's")]
    pub async fn blocking<T: Send + 'static>(&self, closure: impl FnOnce() -> T + Send + 'static) -> T {
        let life = Arc::clone(&self.life);
        let held = self.life.hold();
        let span = runnable_span(self.distinguished_name());
        let result = self.life.shared.handle.spawn_blocking(move || {
            let result = span.in_scope(|| life.enter(closure)).map_err(|panic| panic.to_string());
            if let Err(panic) = &result {
                life.fail(panic.clone());
            }
            // Last, so that the life is not over before it knows.
            drop(held);
            result
        });
        match result.await {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => resume_unwind(Box::new(panic)),
            // The runtime is shutting down and has dropped the closure: there is nobody to tell.
            Err(_) => std::future::pending().await,
        }
    }

    /// Starts a child process that belongs to this runnable: it is killed when the runnable ends, and the runnable is
    /// not started again before it is gone.
    ///
    /// # Errors
    ///
    /// When the process could not be started; nothing is left of it then.
    pub async fn process(&self, spec: ProcessSpec) -> Result<Process, SpawnError> {
        Process::start(&self.life, spec).await
    }

    fn refuse_strangers(&self) -> Result<(), StartError> {
        match Life::current() {
            Some(current) if !Arc::ptr_eq(&current, &self.life) => {
                Err(StartError::Foreign(self.distinguished_name().clone()))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn signal(&self, tell: impl FnOnce(&Life) -> Result<(), SignalError>) {
        match Life::current() {
            Some(current) if !Arc::ptr_eq(&current, &self.life) => {
                current.fail(SignalError::Foreign(self.distinguished_name().clone()).to_string());
            }
            Some(_) | None => {
                if let Err(error) = tell(&self.life) {
                    self.life.fail(error.to_string());
                }
            }
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Context").field(self.distinguished_name()).finish()
    }
}
