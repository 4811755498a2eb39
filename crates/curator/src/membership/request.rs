//! A node is wanted as a member: it is put into the queue, or refused at once.

use std::collections::BTreeSet;
use std::time::Duration;

use polis_consensus::{MembershipError, Transaction};
use polis_identity::NodeId;
use polis_proto::api::node::Health;
use polis_proto::common::NodeState;
use polis_proto::curator_state::{NodeEnrolment, QueuedJoin};
use prost::Message as _;
use tokio::time::{Instant, timeout_at};

use super::Members;
use super::margin::{MAX_MEMBERS, Operation, Refusal};
use super::observation::{Observation, ObserveError};
use super::transaction::{next_position, queued};
use crate::state::Versioned;
use crate::{LeaderState, StateError, UPDATE_ATTEMPTS, layout};

/// How long a node may take to tell its share key. It does so in the moment in which it has contact with the leader, like its first
/// heartbeat, and who asks for the role right after that is not to be refused.
const SHARE_KEY_PATIENCE: Duration = Duration::from_secs(3);

/// What became of the wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The node is in the queue now.
    Added,
    /// It was there already, or its turn has come.
    AlreadyWaiting,
    /// It is a member.
    AlreadyMember,
}

/// A node cannot become a member.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// There is no such node.
    #[error("there is no node {0} in this cluster")]
    NoSuchNode(NodeId),
    /// It is not UP.
    #[error(
        "{node} cannot become a consensus member: it is {}, and only a node that is UP can", state.as_str_name()
    )]
    NotUp {
        /// The node.
        node: NodeId,
        /// How far its enrolment is.
        state: NodeState,
    },
    /// It is UP and not healthy.
    #[error(
        "{node} cannot become a consensus member now: its health is {}. A member that is down costs the others; start the \
         node, wait until it is healthy, and try again", health.as_str_name()
    )]
    NotHealthy {
        /// The node.
        node: NodeId,
        /// Its health.
        health: Health,
    },
    /// The others cannot give it shares of their keys.
    #[error(
        "{0} cannot become a consensus member yet: it has not told the cluster its share key, to which members encrypt what they \
         need to come back after a power failure. A node tells it as soon as it has contact with the \
         leader; look at its log (polis node logs), and try again"
    )]
    NoShareKey(NodeId),
    /// It is just being removed.
    #[error("{0} is being removed from the consensus at this moment; try again when that is done")]
    BeingRemoved(NodeId),
    /// There is no room.
    #[error("{node} cannot become a consensus member")]
    Refused {
        /// The node.
        node: NodeId,
        /// Why.
        #[source]
        source: Refusal,
    },
    /// etcd did not list its members.
    #[error("the members of the cluster's consensus cannot be read")]
    Members(#[source] MembershipError),
    /// The state was not read or changed.
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<ObserveError> for EnqueueError {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Members(source) => Self::Members(source),
            ObserveError::State(error) => Self::State(error),
        }
    }
}

impl Members {
    /// Puts a node into the queue of those that are to become members. It returns at once; what becomes of it is told by
    /// [`Members::status`] and by the node's role. Idempotent.
    ///
    /// # Errors
    ///
    /// When the node is not UP and healthy (window W24), or there is no room for it, or others cannot give it shares of their keys.
    pub async fn enqueue_join(&self, state: &LeaderState, node: &NodeId) -> Result<Enqueued, EnqueueError> {
        let deadline = Instant::now() + SHARE_KEY_PATIENCE;
        for _ in 0..UPDATE_ATTEMPTS {
            let observation = self.observe(state).await?;
            if observation.records.contains_key(node) && !has_share_key(state, &observation, node, deadline).await? {
                return Err(EnqueueError::NoShareKey(*node));
            }
            let transaction = match self.judge_join(&observation, node)? {
                Ok(queued) => Transaction::new()
                    // Nobody begins to remove it meanwhile, and nobody deletes it.
                    .if_absent(layout::queued_join(node))
                    .if_modified_at(layout::node(node), observation.records[node].revision)
                    .put(layout::queued_join(node), queued.encode_to_vec()),
                Err(already) => return Ok(already),
            };
            if state.attempt("membership/enqueue", transaction).await?.is_some() {
                return Ok(Enqueued::Added);
            }
        }
        Err(StateError::Conflict.into())
    }

    /// What to put into the queue, or why nothing needs to be.
    fn judge_join(
        &self,
        observation: &Observation,
        node: &NodeId,
    ) -> Result<Result<QueuedJoin, Enqueued>, EnqueueError> {
        let record = &observation.records.get(node).ok_or(EnqueueError::NoSuchNode(*node))?.value;
        let intent = observation.intent.as_ref().map(|intent| intent.value.operation);
        if intent == Some(Operation::Remove(*node)) {
            return Err(EnqueueError::BeingRemoved(*node));
        }
        let voters = observation.voters();
        if voters.contains(node) {
            return Ok(Err(Enqueued::AlreadyMember));
        }
        let is_waiting = observation.queue.iter().any(|queued| queued.value.node == *node);
        if is_waiting || intent == Some(Operation::Add(*node)) {
            return Ok(Err(Enqueued::AlreadyWaiting));
        }
        if record.state != NodeState::Up {
            return Err(EnqueueError::NotUp { node: *node, state: record.state });
        }
        let health = self.0.heartbeats.health(record.state, node, Instant::now());
        if health != Health::Healthy {
            return Err(EnqueueError::NotHealthy { node: *node, health });
        }
        let waiting = observation.queue.iter().map(|queued| queued.value.node);
        let all = voters.iter().copied().chain(waiting).chain(intent.and_then(added));
        if all.collect::<BTreeSet<_>>().len() >= MAX_MEMBERS {
            return Err(EnqueueError::Refused { node: *node, source: Refusal::TooMany });
        }
        Ok(Ok(QueuedJoin { position: next_position(observation), ..queued(&record.public_key) }))
    }
}

/// Whether others can give this node shares of their keys, or need not. Waits for its report until `deadline`.
async fn has_share_key(
    state: &LeaderState,
    observation: &Observation,
    node: &NodeId,
    deadline: Instant,
) -> Result<bool, StateError> {
    if !observation.needs_share_key(node) {
        return Ok(true);
    }
    let key = layout::enrolment(node);
    loop {
        let found = state.read(Transaction::new().get(key.as_str())).await?;
        let revision = found.revision;
        if let Some(pair) = found.found.into_iter().flatten().next() {
            let known = Versioned { value: pair.value, revision: pair.mod_revision }.decode::<NodeEnrolment>(&key)?;
            if !known.value.share_key.is_empty() {
                return Ok(true);
            }
        }
        let mut watch = state.state().root().watch_key(key.as_str(), revision);
        // A watch that comes to its end is made anew after another look.
        if timeout_at(deadline, watch.next()).await.is_err() {
            return Ok(false);
        }
    }
}

fn added(operation: Operation) -> Option<NodeId> {
    match operation {
        Operation::Add(node) => Some(node),
        Operation::Remove(_) => None,
    }
}
