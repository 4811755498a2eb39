//! What operators ask about the keys of a node, and what they are told.

use polis_storage::journal::SealKind;
use tokio::sync::{Mutex, mpsc, oneshot};

/// Most orders that wait at a time. Each is a person's, and they are carried out one after the other.
const WAITING_ORDERS: usize = 8;

/// Why an order about the keys of a node was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyOrderError {
    /// The data of the node are not encrypted.
    #[error("the data of this node are not encrypted, so that there is no key to replace")]
    NotEncrypted,
    /// The journal of the node is not sealed by a TPM.
    #[error("the keys of this node are not sealed by a TPM, so that there is no seal to renew")]
    NotSealed,
    /// It has not begun, and nothing was changed.
    #[error("nothing was changed: {reason}")]
    NotBegun {
        /// Why not.
        reason: String,
    },
    /// It has begun, and the node goes on with it by itself.
    #[error("the key is being replaced, and that is not finished: {reason}; the node goes on by itself")]
    Unfinished {
        /// What it waits for.
        reason: String,
    },
    /// Too many orders wait, or the node is stopping.
    #[error("the node does not take the order now: it carries out others, or it is stopping")]
    Busy,
}

/// An order, and where its outcome is told.
pub(crate) enum KeyOrder {
    Rekey(oneshot::Sender<Result<(), KeyOrderError>>),
    Reseal(oneshot::Sender<Result<SealKind, KeyOrderError>>),
    /// Bring the key into order now. Its outcome says whether it is.
    Settle(oneshot::Sender<Result<(), KeyOrderError>>),
}

/// The way of orders to whoever carries them out.
pub(crate) struct KeyOrders {
    sender: mpsc::Sender<KeyOrder>,
    /// Held by the one that carries them out.
    pub(crate) receiver: Mutex<mpsc::Receiver<KeyOrder>>,
}

impl KeyOrders {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_ORDERS);
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Gives an order and waits for what becomes of it.
    pub(crate) async fn give<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, KeyOrderError>>) -> KeyOrder,
    ) -> Result<T, KeyOrderError> {
        let (reply, outcome) = oneshot::channel();
        self.sender.try_send(order(reply)).map_err(|_| KeyOrderError::Busy)?;
        outcome.await.map_err(|_| KeyOrderError::Busy)?
    }
}
