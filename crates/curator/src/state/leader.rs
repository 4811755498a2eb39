//! What only the leader may do.

use std::fmt;
use std::sync::Arc;

use polis_consensus::{Committed, KvError, Transaction};
use polis_identity::NodeId;
use prost::Message;
use tokio::sync::watch;

use super::{NodeRecord, State, StateError, Versioned, node_record, versioned};
use crate::layout;

/// The cluster's state in the hands of its leader. It is given out only by a claim of the leadership that succeeded, and
/// every read and change through it fails from the moment on at which another claim succeeds: the claim is written to
/// `/leader/current`, and each transaction is conditioned on the revision of that. Clones are of the same leadership.
#[derive(Clone)]
pub struct LeaderState(Arc<Inner>);

struct Inner {
    state: State,
    fence: Fence,
    node: NodeId,
    raft_term: u64,
    /// Whether the leadership was found to be lost.
    lost: watch::Sender<bool>,
}

/// The revision at which this leadership was written: it is over once the key has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) revision: i64,
}

impl LeaderState {
    /// The state as the leader has it whose claim was written at the fence's revision.
    pub(crate) fn new(state: State, fence: Fence, node: NodeId, raft_term: u64) -> Self {
        Self(Arc::new(Inner { state, fence, node, raft_term, lost: watch::Sender::new(false) }))
    }

    /// This node, which leads.
    #[must_use]
    pub fn node_id(&self) -> &NodeId {
        &self.0.node
    }

    /// Term of raft in which the leadership was claimed.
    #[must_use]
    pub fn raft_term(&self) -> u64 {
        self.0.raft_term
    }

    /// The state for reading, also by one who does not lead.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// Whether this leadership was found to be over. False is no promise: only a transaction knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.0.lost.borrow()
    }

    /// Waits until this leadership is found to be over.
    pub async fn lost(&self) {
        // The sender is in this very value.
        let _ = self.0.lost.subscribe().wait_for(|lost| *lost).await;
    }

    /// Notes that this leadership is over.
    pub(crate) fn lose(&self) {
        self.0.lost.send_if_modified(|lost| !std::mem::replace(lost, true));
    }

    /// The revision at which this leadership was written.
    pub(crate) fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Carries out a transaction, if this node still leads. Every change of the state goes through here.
    ///
    /// `site` names the call for fault points.
    ///
    /// # Errors
    ///
    /// [`StateError::LostLeadership`] and [`StateError::Conflict`] when nothing was changed, for the two kinds of reasons;
    /// [`StateError::OutcomeUnknown`] when it is not known whether it was.
    pub async fn transact(&self, site: &'static str, transaction: Transaction) -> Result<Committed, StateError> {
        let outcome = self.0.state.root().transact(site, self.fenced(transaction)).await;
        self.settle(outcome, StateError::OutcomeUnknown)
    }

    /// The same for a caller that reads again and decides anew after a conflict, for which `None` stands.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::transact`], but for the conflict.
    pub(crate) async fn attempt(
        &self,
        site: &'static str,
        transaction: Transaction,
    ) -> Result<Option<Committed>, StateError> {
        match self.transact(site, transaction).await {
            Ok(committed) => Ok(Some(committed)),
            Err(StateError::Conflict) => Ok(None),
            Err(
                error @ (StateError::LostLeadership
                | StateError::Unavailable(_)
                | StateError::OutcomeUnknown(_)
                | StateError::Damaged { .. }),
            ) => Err(error),
        }
    }

    /// Carries out a transaction that only reads, at one revision, if this node still leads.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::transact`], except that the outcome of a read is never unknown.
    pub async fn read(&self, transaction: Transaction) -> Result<Committed, StateError> {
        let outcome = self.0.state.read_raw(self.fenced(transaction)).await;
        self.settle(outcome, StateError::of_read)
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`].
    pub async fn get(&self, key: &str) -> Result<Option<Versioned<Vec<u8>>>, StateError> {
        let found = self.read(Transaction::new().get(key)).await?;
        Ok(found.found.into_iter().flatten().next().map(|pair| versioned::of_pair(pair).1))
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when the value is no such message.
    pub async fn get_message<M: Message + Default>(&self, key: &str) -> Result<Option<Versioned<M>>, StateError> {
        self.get(key).await?.map(|found| found.decode(key)).transpose()
    }

    /// Reads all keys that start with `beginning`, each with its value, in the order of the keys.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`].
    pub async fn list(&self, beginning: &str) -> Result<Vec<(String, Versioned<Vec<u8>>)>, StateError> {
        let found = self.read(Transaction::new().list(beginning)).await?;
        Ok(found.found.into_iter().flatten().map(versioned::of_pair).collect())
    }

    /// Reads all messages whose keys start with `beginning`, in the order of the keys.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when a value is no such message.
    pub async fn list_messages<M: Message + Default>(
        &self,
        beginning: &str,
    ) -> Result<Vec<(String, Versioned<M>)>, StateError> {
        let found = self.list(beginning).await?;
        found.into_iter().map(|(key, value)| value.decode(&key).map(|message| (key, message))).collect()
    }

    /// Reads the record of a node.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when the record is damaged.
    pub async fn node(&self, id: &NodeId) -> Result<Option<Versioned<NodeRecord>>, StateError> {
        let key = layout::node(id);
        self.get(&key).await?.map(|found| node_record::decode(id, &key, found)).transpose()
    }

    /// Reads the records of all nodes, ordered by id. Only those that have changed since the last time are decoded.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when a record is damaged.
    pub async fn nodes(&self) -> Result<Vec<Versioned<Arc<NodeRecord>>>, StateError> {
        let found = self.read(Transaction::new().list(layout::nodes())).await?;
        self.0.state.records().decode_all(found.found.first().map_or(&[], Vec::as_slice))
    }

    fn fenced(&self, transaction: Transaction) -> Transaction {
        transaction.if_modified_at(layout::leader(), self.0.fence.revision).otherwise_get(layout::leader())
    }

    fn settle(
        &self,
        outcome: Result<Committed, KvError>,
        otherwise: fn(KvError) -> StateError,
    ) -> Result<Committed, StateError> {
        match outcome {
            Ok(committed) => Ok(committed),
            Err(KvError::PreconditionFailed { found }) => {
                // What was read last is the fence.
                let current = found.last().and_then(|pairs| pairs.first()).map(|pair| pair.mod_revision);
                if current == Some(self.0.fence.revision) {
                    return Err(StateError::Conflict);
                }
                self.lose();
                Err(StateError::LostLeadership)
            }
            Err(error @ KvError::OutcomeUnknown { .. }) => Err(otherwise(error)),
            Err(
                error @ (KvError::Unavailable { .. }
                | KvError::NoLeader { .. }
                | KvError::NoSpace { .. }
                | KvError::LeaseNotFound
                | KvError::Refused { .. }),
            ) => Err(StateError::Unavailable(error)),
        }
    }
}

impl fmt::Debug for LeaderState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { state: _, fence, node, raft_term, lost } = &*self.0;
        formatter
            .debug_struct("LeaderState")
            .field("node", node)
            .field("raft_term", raft_term)
            .field("fence", &fence.revision)
            .field("lost", &*lost.borrow())
            .finish()
    }
}
