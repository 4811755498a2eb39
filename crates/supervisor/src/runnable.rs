//! What is run: a function of a context, and what it may return.

use std::error::Error;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::context::Context;

/// Any error of a runnable.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// What a runnable returns.
pub type RunnableResult = Result<(), BoxError>;

/// Something that runs under a supervisor. It is run again each time it has died, so it is a function and not a future.
///
/// Every `Fn(Context) -> impl Future<Output = RunnableResult>` is one. [`runnable`] makes a [`SharedRunnable`] of a
/// closure, whose types the compiler then infers.
pub trait Runnable: Send + Sync + 'static {
    /// One life. A panic in this call is the death of the runnable, as is one in the future.
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult>;
}

impl<F, Fut> Runnable for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = RunnableResult> + Send + 'static,
{
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        Box::pin(self(context))
    }
}

/// A runnable whose type is forgotten, so that different ones can be members of one group. Clones share it.
#[derive(Clone)]
pub struct SharedRunnable(Arc<dyn Runnable>);

impl SharedRunnable {
    /// Forgets the type of a runnable.
    #[must_use]
    pub fn new(runnable: impl Runnable) -> Self {
        Self(Arc::new(runnable))
    }
}

impl Runnable for SharedRunnable {
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        self.0.run(context)
    }
}

impl std::fmt::Debug for SharedRunnable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SharedRunnable")
    }
}

/// A runnable made of a closure: `runnable(|context| async move { .. })`.
pub fn runnable<F, Fut>(function: F) -> SharedRunnable
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = RunnableResult> + Send + 'static,
{
    SharedRunnable::new(function)
}

/// The error that says: I stopped because my context was cancelled. A runnable that was cancelled may return it, an
/// error that it is the last cause of, or `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the context was cancelled")]
pub struct Cancelled;

/// The error that says: this life has ended as it was meant to, and another is to begin. That is no death: nothing is logged or
/// counted, and the next life begins without a backoff, as soon as nothing is left of this one. Whoever returns it waits for
/// something in each life, or the lives follow each other without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this life is over as it was meant to be, and another is to begin")]
pub struct BeginAnew;

/// True when the innermost cause of `error` is [`Cancelled`].
#[must_use]
pub fn is_cancellation(error: &(dyn Error + 'static)) -> bool {
    innermost(error).is::<Cancelled>()
}

/// True when the innermost cause of `error` is [`BeginAnew`].
pub(crate) fn is_new_beginning(error: &(dyn Error + 'static)) -> bool {
    innermost(error).is::<BeginAnew>()
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// An error with all its causes on one line, for logs and conditions.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] BoxError);

    #[test]
    fn what_is_no_death_is_found_at_the_end_of_the_chain() {
        assert!(is_cancellation(&Cancelled));
        assert!(is_cancellation(&Outer(Box::new(Outer(Cancelled.into())))));
        assert!(!is_cancellation(&Outer("no".into())));
        assert!(!is_cancellation(&io::Error::other("no")));
        assert!(is_new_beginning(&Outer(BeginAnew.into())) && !is_new_beginning(&Cancelled));
    }

    #[test]
    fn causes_are_told_in_order() {
        assert_eq!(with_causes(&Outer(Box::new(Outer("inner".into())))), "outer: outer: inner");
    }
}
