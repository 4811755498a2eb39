//! One life of a runnable, as the runtime sees it: its tokens, its tasks, and what it died of.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};

use polis_logtree::{DistinguishedName, runnable_span};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::context::Context;
use crate::core::{self, Outcome};
use crate::panics::{self, Panic};
use crate::runnable::{Runnable, RunnableResult, SharedRunnable, is_cancellation, is_new_beginning, with_causes};
use crate::shared::Shared;

thread_local! {
    /// Whose code runs on this thread now.
    static CURRENT: RefCell<Option<Arc<Life>>> = const { RefCell::new(None) };
}

/// One life of a runnable. Shared by its contexts and the supervisor's loop.
pub(crate) struct Life {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: core::Life,
    pub(crate) distinguished_name: DistinguishedName,
    /// Asks it to stop.
    pub(crate) cancel: CancellationToken,
    /// Ends its future, its tasks and its processes.
    pub(crate) kill: CancellationToken,
    /// Everything of it that is not its future.
    tracker: TaskTracker,
    /// The first thing that it died of outside of its future.
    failure: Mutex<Option<String>>,
}

impl Life {
    /// Starts a life on the runtime.
    #[expect(clippy::disallowed_methods, reason = "the tree hears of the end and the panic of this task")]
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        key: core::Life,
        name: DistinguishedName,
        runnable: SharedRunnable,
    ) -> Arc<Self> {
        let span = runnable_span(&name);
        let life = Arc::new(Self {
            shared: Arc::clone(shared),
            key,
            distinguished_name: name,
            cancel: CancellationToken::new(),
            kill: CancellationToken::new(),
            tracker: TaskTracker::new(),
            failure: Mutex::new(None),
        });
        shared.handle.spawn(Arc::clone(&life).live(runnable).instrument(span));
        life
    }

    /// The whole life: the future, then what is left of its tasks and processes.
    async fn live(self: Arc<Self>, runnable: SharedRunnable) {
        let outcome = {
            let context = Context::new(Arc::clone(&self));
            let future = Guarded::new(Arc::clone(&self), async move { runnable.run(context).await });
            tokio::select! {
                biased;
                result = future => match result {
                    Ok(result) => outcome(result),
                    Err(panic) => Outcome::Failed(panic.to_string()),
                },
                () = self.kill.cancelled() => Outcome::Aborted,
            }
        };
        self.kill.cancel();
        self.shared.returned(self.key, self.take_failure().map_or(outcome, Outcome::Failed));
        self.tracker.close();
        self.tracker.wait().await;
        if let Some(failure) = self.take_failure() {
            Context::new(Arc::clone(&self)).logger().error(format!("after it had returned: {failure}"));
        }
        self.shared.ended(self.key);
    }

    /// The runnable dies of `error`, unless it has died of something before.
    pub(crate) fn fail(&self, error: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.kill.cancel();
    }

    /// Runs a task that the end of the runnable does not end, and that must end by itself before this life is over. Its
    /// panic is the death of the runnable.
    pub(crate) fn detach(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        let life = Arc::clone(self);
        let future = Guarded::new(Arc::clone(self), future);
        let task = async move {
            if let Err(panic) = future.await {
                life.fail(panic.to_string());
            }
        };
        self.run_tracked(task);
    }

    /// Something that must end before this life is over.
    pub(crate) fn hold(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Runs a task of this runnable: it is dropped when the runnable ends, and its panic or error is the runnable's
    /// death.
    pub(crate) fn spawn(self: &Arc<Self>, future: impl Future<Output = RunnableResult> + Send + 'static) {
        let life = Arc::clone(self);
        let future = Guarded::new(Arc::clone(self), future);
        let task = async move {
            let result = tokio::select! {
                biased;
                result = future => result,
                () = life.kill.cancelled() => return,
            };
            match result.map(outcome) {
                Ok(Outcome::Finished | Outcome::Aborted) => {}
                Ok(Outcome::Cancelled) if life.cancel.is_cancelled() => {}
                Ok(Outcome::Cancelled) => {
                    life.fail("a task returned the error of a cancelled context, but nothing was cancelled".into());
                }
                Ok(Outcome::Anew) => {
                    life.fail("a task asked for another life, which only the runnable itself can do".into());
                }
                Ok(Outcome::Failed(error)) => life.fail(error),
                Err(panic) => life.fail(panic.to_string()),
            }
        };
        self.run_tracked(task);
    }

    /// Calls code of this runnable; a panic is returned.
    pub(crate) fn enter<T>(self: &Arc<Self>, function: impl FnOnce() -> T) -> Result<T, Panic> {
        let outer = CURRENT.replace(Some(Arc::clone(self)));
        let result = panics::catch(function);
        CURRENT.set(outer);
        result
    }

    #[expect(clippy::disallowed_methods, reason = "the task is tracked, and its panic is the runnable's")]
    fn run_tracked(&self, task: impl Future<Output = ()> + Send + 'static) {
        let span = runnable_span(&self.distinguished_name);
        self.shared.handle.spawn(self.tracker.track_future(task.instrument(span)));
    }

    fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whose code runs on this thread now, if it is that of a runnable.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }
}

fn outcome(result: RunnableResult) -> Outcome {
    match result {
        Ok(()) => Outcome::Finished,
        Err(error) if is_cancellation(&*error) => Outcome::Cancelled,
        Err(error) if is_new_beginning(&*error) => Outcome::Anew,
        // Formatting is code of the runnable too.
        Err(error) => match panics::catch(|| with_causes(&*error)) {
            Ok(text) => Outcome::Failed(text),
            Err(panic) => Outcome::Failed(format!("returned an error whose text cannot be told: {panic}")),
        },
    }
}

/// A future of a runnable. Its panics, also those of its drop, do not leave it.
struct Guarded<F> {
    life: Arc<Life>,
    future: Option<Pin<Box<F>>>,
}

impl<F> Guarded<F> {
    fn new(life: Arc<Life>, future: F) -> Self {
        Self { life, future: Some(Box::pin(future)) }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(future) = &mut this.future else { return Poll::Pending };
        match this.life.enter(|| future.as_mut().poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<F> Drop for Guarded<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        if let Err(panic) = self.life.enter(|| drop(future)) {
            self.life.fail(format!("{panic}, while its future was dropped"));
        }
    }
}
