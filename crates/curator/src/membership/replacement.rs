//! A member that cannot read its data is replaced: it is removed like any other, and its node waits for another one from the
//! moment that this is written down.
//!
//! With the member goes the role of a Kubernetes controller, which needs one. Nobody has asked for that, so it comes back with the new
//! member: that it is to is written down with the place in the queue.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::curator_state::QueuedJoin;
use prost::Message as _;

use super::Members;
use super::margin::Operation;
use super::removal::{Judged, RemovalError};
use super::transaction::{next_position, queued};
use crate::{LeaderState, StateError, UPDATE_ATTEMPTS, layout};

impl Members {
    /// Writes down that the member of a node is to be removed, as it has lost its data, and that the node is to have another: both in
    /// one transaction, so that it is not left without, whoever dies. A node without a vote needs none: a learner that does not
    /// start is taken away anyhow. Idempotent.
    ///
    /// # Errors
    ///
    /// When it would cost the quorum, or another change is under way.
    pub async fn request_replacement(
        &self,
        state: &LeaderState,
        node: &NodeId,
        reason: &str,
    ) -> Result<(), RemovalError> {
        for _ in 0..UPDATE_ATTEMPTS {
            let observation = self.observe(state).await?;
            let record = observation.records.get(node).ok_or(RemovalError::NoSuchNode(*node))?;
            let is_going = observation.intent.as_ref().is_some_and(|it| it.value.operation == Operation::Remove(*node));
            if is_going || !observation.voters().contains(node) {
                return Ok(());
            }
            if observation.queue.iter().any(|queued| queued.value.node == *node) {
                return Err(RemovalError::Busy("the node leaves the queue, as it has become a member".into()));
            }
            let text = format!("its consensus member cannot read its data: {reason}");
            let transaction = match self.judge_removal(state, &observation, node, &text).await? {
                Judged::Done(_) => return Ok(()),
                Judged::Write { transaction, .. } => transaction,
            };
            let waiting = QueuedJoin {
                position: next_position(&observation),
                last_failure: text,
                kubernetes_controller: record.value.roles.kubernetes_controller.is_some(),
                ..queued(&record.value.public_key)
            };
            let transaction = transaction
                .if_absent(layout::queued_join(node))
                .put(layout::queued_join(node), waiting.encode_to_vec());
            if state.attempt("membership/request-replacement", transaction).await?.is_some() {
                tracing::warn!("the consensus member of {node} cannot read its data ({reason}); it is replaced");
                return Ok(());
            }
        }
        Err(StateError::Conflict.into())
    }

    /// The role of a Kubernetes controller is taken from a node: should its member just be replaced, it does not come back with the new
    /// one.
    ///
    /// # Errors
    ///
    /// When the state was not read or changed.
    pub async fn forget_controller(&self, state: &LeaderState, node: &NodeId) -> Result<(), StateError> {
        let key = layout::queued_join(node);
        for _ in 0..UPDATE_ATTEMPTS {
            let Some(queued) = state.get_message::<QueuedJoin>(&key).await? else { return Ok(()) };
            if !queued.value.kubernetes_controller {
                return Ok(());
            }
            let changed = QueuedJoin { kubernetes_controller: false, ..queued.value };
            let transaction = Transaction::new()
                .if_modified_at(key.as_str(), queued.revision)
                .put(key.as_str(), changed.encode_to_vec());
            if state.attempt("membership/forget-controller", transaction).await?.is_some() {
                return Ok(());
            }
        }
        Err(StateError::Conflict)
    }
}
