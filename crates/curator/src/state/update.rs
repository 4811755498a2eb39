//! Changing one node: read, decide, write, and again if somebody else was faster.

use polis_consensus::Transaction;
use polis_identity::NodeId;

use super::{LeaderState, NodeRecord, StateError, Versioned};
use crate::layout;

/// How often a change of a node is decided anew because its record was changed meanwhile. Those who change one record at the
/// same time are few, and each conflict means that one of them is done.
pub const UPDATE_ATTEMPTS: u32 = 16;

impl LeaderState {
    /// Changes the record of a node: `decide` gets it as it is (`None` when there is no such node) and says what it is to
    /// be; `Ok(None)` leaves it. Returns the record as it is then.
    ///
    /// `decide` is called again when the record was changed between reading and writing, at most [`UPDATE_ATTEMPTS`] times.
    ///
    /// # Errors
    ///
    /// What `decide` returns, and as for [`LeaderState::transact`].
    pub async fn update_node<E: From<StateError>>(
        &self,
        site: &'static str,
        id: &NodeId,
        mut decide: impl FnMut(Option<&NodeRecord>) -> Result<Option<NodeRecord>, E>,
    ) -> Result<Option<Versioned<NodeRecord>>, E> {
        self.update_node_and(site, id, |record| Ok(decide(record)?.map(|record| (record, Transaction::new())))).await
    }

    /// The same, where more is to change with the record: the transaction that `decide` returns with it is made together with
    /// the change of the record. A conflict on one of its own expectations has `decide` called again, too.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::update_node`].
    pub async fn update_node_and<E: From<StateError>>(
        &self,
        site: &'static str,
        id: &NodeId,
        mut decide: impl FnMut(Option<&NodeRecord>) -> Result<Option<(NodeRecord, Transaction)>, E>,
    ) -> Result<Option<Versioned<NodeRecord>>, E> {
        let key = layout::node(id);
        for _ in 0..UPDATE_ATTEMPTS {
            let found = self.node(id).await?;
            let Some((record, transaction)) = decide(found.as_ref().map(|found| &found.value))? else {
                return Ok(found);
            };
            let transaction = match &found {
                Some(found) => transaction.if_modified_at(key.as_str(), found.revision),
                None => transaction.if_absent(key.as_str()),
            };
            if let Some(committed) = self.attempt(site, transaction.put(key.as_str(), record.encode())).await? {
                return Ok(Some(Versioned { value: record, revision: committed.revision }));
            }
        }
        Err(StateError::Conflict.into())
    }
}
