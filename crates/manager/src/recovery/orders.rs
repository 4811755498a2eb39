//! What somebody with the recovery key gives, on its way to whoever waits for a key.

use polis_secret::Secret32;
use polis_storage::Journal;
use polis_supervisor::BoxError;
use polis_unlock_service::RecoverError;
use tokio::sync::{Mutex, mpsc, oneshot};

/// Orders that wait at a time: the unlock port lets one recovery be under way, and the one before may have been left behind by
/// somebody who has gone.
const WAITING_ORDERS: usize = 2;

/// Keys to be tried, and where it is told what has become of that. To drop it says that the node is stopping.
pub(crate) struct RecoveryOrder {
    keys: Vec<Secret32>,
    journal: Option<Box<Journal>>,
    reply: oneshot::Sender<Result<String, RecoverError>>,
}

impl RecoveryOrder {
    /// The cluster's half of the key of the data: any of these may be the one that opens, and they are tried in this order.
    pub(crate) fn keys(&self) -> &[Secret32] {
        &self.keys
    }

    /// The node's record, where its own does not unseal.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// One of the keys has opened the data.
    pub(crate) fn opened(self) {
        self.end(Ok("its data are open, by the recovery key"));
    }

    /// The same, and the record of the node is stored.
    pub(super) fn restored(self) {
        self.end(Ok(
            "its data are open, by the recovery key, and its keys are sealed to the present state of the machine",
        ));
    }

    /// None of the keys opens the data.
    pub(crate) fn wrong(self) {
        self.failed(
            "no key of the recovery blob opens the data partition: the blob is older than the last change of the key, or of other \
             data; nothing was changed",
        );
    }

    /// It could not be tried, or the outcome could not be kept.
    pub(crate) fn failed(self, error: impl Into<BoxError>) {
        self.end(Err(RecoverError::Failed(error.into())));
    }

    fn end(self, outcome: Result<&str, RecoverError>) {
        // Whoever has asked may have gone.
        let _ = self.reply.send(outcome.map(str::to_owned));
    }
}

/// The way of orders to whoever waits for a key.
pub(super) struct RecoveryOrders {
    sender: mpsc::Sender<RecoveryOrder>,
    /// Held by the one that waits.
    receiver: Mutex<mpsc::Receiver<RecoveryOrder>>,
}

impl RecoveryOrders {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_ORDERS);
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Gives keys, and the record they belong to, and waits for what becomes of them.
    pub(super) async fn give(
        &self,
        keys: Vec<Secret32>,
        journal: Option<Box<Journal>>,
    ) -> Result<String, RecoverError> {
        let gone =
            || RecoverError::Failed("the node does not take it now: it takes another one, or it is stopping".into());
        let (reply, outcome) = oneshot::channel();
        self.sender.try_send(RecoveryOrder { keys, journal, reply }).map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }

    /// The next order that somebody still waits for.
    pub(super) async fn next(&self) -> RecoveryOrder {
        let mut receiver = self.receiver.lock().await;
        loop {
            match receiver.recv().await {
                Some(order) if order.reply.is_closed() => {}
                Some(order) => return order,
                // This very value holds a sender.
                None => std::future::pending().await,
            }
        }
    }
}
