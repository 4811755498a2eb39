//! The cluster's state: what any node with a consensus member may read, and what only the leader may change.
//!
//! [`State`] reads. [`LeaderState`] exists only while this node leads; whatever it reads is as it was while this node led, and
//! whatever it writes is written only while it does. A change is a [`Transaction`]: read with a revision ([`Versioned`]), decide,
//! write on the condition that the revision is still the same ([`LeaderState::update_node`] does that for a node).

mod error;
mod leader;
mod node_record;
mod peers;
mod pki;
mod records;
mod update;
mod versioned;

use std::sync::Arc;

use polis_consensus::{Committed, KvError, Namespaced, Transaction};
use polis_identity::NodeId;
use prost::Message;

use crate::layout;

pub use self::error::StateError;
pub use self::leader::LeaderState;
pub use self::node_record::{NodeRecord, NodeRecordError};
pub use self::pki::RevocationChange;
pub use self::update::UPDATE_ATTEMPTS;
pub use self::versioned::Versioned;

pub(crate) use self::leader::Fence;
pub(crate) use self::records::Records;

/// Call site of transactions that only read. It has no effect on what is stored.
const READ: &str = "curator/read";

/// The cluster's state, for reading. Clones are handles of the same.
///
/// Every read is linearizable: it sees each change that was acknowledged before it.
#[derive(Clone)]
pub struct State {
    root: Namespaced,
    records: Arc<Records>,
}

impl State {
    /// The state that is read through `root`, a client for the whole key space.
    #[must_use]
    pub fn new(root: Namespaced) -> Self {
        Self { root, records: Arc::default() }
    }

    /// The client for the whole key space: for watches, and for reads that nothing here offers. It must not be used for
    /// changes.
    #[must_use]
    pub const fn root(&self) -> &Namespaced {
        &self.root
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn get(&self, key: &str) -> Result<Option<Versioned<Vec<u8>>>, StateError> {
        let found = self.root.get(key).await.map_err(StateError::of_read)?;
        Ok(found.map(|pair| Versioned { value: pair.value, revision: pair.mod_revision }))
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or the value is no such message.
    pub async fn get_message<M: Message + Default>(&self, key: &str) -> Result<Option<Versioned<M>>, StateError> {
        self.get(key).await?.map(|found| found.decode(key)).transpose()
    }

    /// Reads all keys that start with `beginning`, each with its value.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn list(&self, beginning: &str) -> Result<Vec<(String, Versioned<Vec<u8>>)>, StateError> {
        let found = self.root.list(beginning).await.map_err(StateError::of_read)?;
        Ok(found.entries.into_iter().map(versioned::of_pair).collect())
    }

    /// Reads the record of a node.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or the record is damaged.
    pub async fn node(&self, id: &NodeId) -> Result<Option<Versioned<NodeRecord>>, StateError> {
        let key = layout::node(id);
        self.get(&key).await?.map(|found| node_record::decode(id, &key, found)).transpose()
    }

    /// Reads the records of all nodes, ordered by id.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or a record is damaged.
    pub async fn nodes(&self) -> Result<Vec<Versioned<Arc<NodeRecord>>>, StateError> {
        let found = self.root.list(layout::nodes()).await.map_err(StateError::of_read)?;
        self.records.decode_all(&found.entries)
    }

    /// Carries out a transaction that only reads, at one revision.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or one of the transaction's expectations does not hold.
    pub async fn read(&self, transaction: Transaction) -> Result<Committed, StateError> {
        self.read_raw(transaction).await.map_err(StateError::of_read)
    }

    /// The same, with etcd's own word for what went wrong.
    pub(crate) async fn read_raw(&self, transaction: Transaction) -> Result<Committed, KvError> {
        self.root.transact(READ, transaction).await
    }

    pub(crate) const fn records(&self) -> &Arc<Records> {
        &self.records
    }
}
