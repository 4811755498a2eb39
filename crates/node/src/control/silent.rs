//! Who has connected and not said yet what they want: the oldest of them go when others need the place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The clients that have said nothing yet. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Silent(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// Later ones have higher numbers.
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// One client that has said nothing yet, until it is dropped.
pub(super) struct SilentClient {
    silent: Silent,
    number: u64,
    shed: oneshot::Receiver<()>,
}

impl Silent {
    /// A client has come.
    pub(super) fn enter(&self) -> SilentClient {
        let (sender, shed) = oneshot::channel();
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        inner.waiting.insert(number, sender);
        drop(inner);
        SilentClient { silent: self.clone(), number, shed }
    }

    /// Sends the one away that has been silent for longest, if there is one.
    pub(super) fn shed(&self) {
        if let Some((_, client)) = self.lock().waiting.pop_first() {
            // One that has gone in this moment leaves its place anyhow.
            let _ = client.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SilentClient {
    /// Waits until the client is sent away.
    pub(super) async fn shed(&mut self) {
        if (&mut self.shed).await.is_err() {
            // Its sender is dropped only when it is used, or with this value.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for SilentClient {
    fn drop(&mut self) {
        self.silent.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_oldest_that_is_still_silent_goes_first() {
        let silent = Silent::default();
        silent.shed();
        let [first, mut second, mut third] = std::array::from_fn(|_| silent.enter());
        assert!(second.shed().now_or_never().is_none());
        // It has said what it wants, and is safe from now on.
        drop(first);
        silent.shed();
        assert!(second.shed().now_or_never().is_some());
        assert!(third.shed().now_or_never().is_none());
        silent.shed();
        assert!(third.shed().now_or_never().is_some());
        drop((second, third));
        assert!(silent.lock().waiting.is_empty());
    }
}
