//! A future or body of a handler whose panics do not leave it, not even those of its drop.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The message of a panic.
pub(super) struct Panic(pub(super) String);

/// Something pinned on the heap that is only touched under a guard.
pub(super) struct Contained<T> {
    /// Gone after a panic.
    inside: Option<Pin<Box<T>>>,
}

impl<T> Contained<T> {
    pub(super) fn new(inside: T) -> Self {
        Self { inside: Some(Box::pin(inside)) }
    }

    /// Works with what is inside. After a panic there is nothing inside any more, and the result is `None`.
    pub(super) fn touch<R>(&mut self, work: impl FnOnce(Pin<&mut T>) -> R) -> Option<Result<R, Panic>> {
        let inside = self.inside.as_mut()?;
        let result = catch(|| work(inside.as_mut()));
        if result.is_err() {
            self.discard();
        }
        Some(result)
    }

    /// Looks at what is inside, if it still is.
    pub(super) fn get(&self) -> Option<&T> {
        self.inside.as_deref()
    }

    /// Drops what is inside.
    pub(super) fn discard(&mut self) {
        let inside = self.inside.take();
        if let Err(Panic(panic)) = catch(|| drop(inside)) {
            tracing::error!(panic, "a handler panicked while it was dropped");
        }
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        self.discard();
    }
}

impl<F: Future> Future for Contained<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut().touch(|future| future.poll(context)) {
            Some(Ok(Poll::Ready(output))) => Poll::Ready(Ok(output)),
            Some(Ok(Poll::Pending)) | None => Poll::Pending,
            Some(Err(panic)) => Poll::Ready(Err(panic)),
        }
    }
}

fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let message = message(&*payload);
        // What was thrown may panic again when it is dropped. It is leaked rather than let that out.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload))).map_err(std::mem::forget);
        Panic(message)
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a value that is not text".to_owned()
    }
}
