//! A member is to go: the margin is checked at once, the wish is written down, and its end can be waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use polis_consensus::{MembershipError, Transaction};
use polis_identity::{NodeId, PublicKey};
use tokio::time::{Instant, timeout_at};

use super::Members;
use super::margin::{Operation, Refusal, Verdict, judge};
use super::observation::{Observation, ObserveError};
use super::transaction::{dequeue, without_role};
use crate::{LeaderState, StateError, UPDATE_ATTEMPTS, layout};

/// How long a caller should wait for the end of a removal: more than the time for which one is tried that is refused.
pub const REMOVAL_DEADLINE: Duration = Duration::from_secs(15);

/// A removal that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The node.
    pub node: NodeId,
    /// What it does to the margin; `None` when the node has no vote, or its removal was under way already.
    pub verdict: Option<Verdict>,
    /// Revision of the store at which it was under way; `None` when there is nothing to wait for.
    revision: Option<i64>,
}

/// A member was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// There is no such node and no such member.
    #[error("there is no node {0} in this cluster")]
    NoSuchNode(NodeId),
    /// It would cost the quorum, or is refused for another reason.
    #[error("the consensus member of {node} is not removed")]
    Refused {
        /// The node.
        node: NodeId,
        /// Why, with the numbers.
        #[source]
        source: Refusal,
    },
    /// Another change is under way.
    #[error(
        "another change of the consensus members is under way ({0}), and there is one at a time; try again in a moment"
    )]
    Busy(String),
    /// It was written down, and given up again.
    #[error("the consensus member of {node} was not removed: {reason}")]
    Withdrawn {
        /// The node.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// It is still under way.
    #[error(
        "the consensus member of {node} is not removed yet: {waiting_for}. It is gone on with; ask again, or look at the \
         status of the cluster"
    )]
    UnderWay {
        /// The node.
        node: NodeId,
        /// What is being waited for.
        waiting_for: String,
    },
    /// etcd did not answer.
    #[error("the members of the cluster's consensus cannot be read")]
    Members(#[from] MembershipError),
    /// The state was not read or changed.
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<ObserveError> for RemovalError {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Members(source) => Self::Members(source),
            ObserveError::State(error) => Self::State(error),
        }
    }
}

impl Members {
    /// Writes down that the member of a node is to be removed, for the reason given, after the margin was checked with
    /// the members' fresh answers. A node that only waits leaves the queue. Idempotent.
    ///
    /// # Errors
    ///
    /// When it would cost the quorum, or another change is under way.
    pub async fn request_removal(
        &self,
        state: &LeaderState,
        node: &NodeId,
        reason: &str,
    ) -> Result<Removal, RemovalError> {
        for _ in 0..UPDATE_ATTEMPTS {
            let observation = self.observe(state).await?;
            let (transaction, verdict, is_open) = match self.judge_removal(state, &observation, node, reason).await? {
                Judged::Done(removal) => return Ok(removal),
                Judged::Write { transaction, verdict, is_open } => (transaction, verdict, is_open),
            };
            if let Some(committed) = state.attempt("membership/request-removal", transaction).await? {
                return Ok(Removal { node: *node, verdict, revision: is_open.then_some(committed.revision) });
            }
        }
        Err(StateError::Conflict.into())
    }

    pub(super) async fn judge_removal(
        &self,
        state: &LeaderState,
        observation: &Observation,
        node: &NodeId,
        reason: &str,
    ) -> Result<Judged, RemovalError> {
        let operation = Operation::Remove(*node);
        let record = observation.records.get(node);
        let open = observation.intent.as_ref();
        match open {
            Some(open) if open.value.operation == operation => {
                return Ok(Judged::Done(Removal { node: *node, verdict: None, revision: Some(observation.revision) }));
            }
            // Its own addition is turned around.
            Some(open) if open.value.node() != *node => return Err(RemovalError::Busy(self.describe(&open.value))),
            Some(_) | None => {}
        }
        let is_voter = observation.voters().contains(node);
        if open.is_none() && observation.member(*node).is_none() {
            // No member: only what is written about it goes.
            let record = record.ok_or(RemovalError::NoSuchNode(*node))?;
            let is_queued = observation.queue.iter().any(|queued| queued.value.node == *node);
            if !is_queued && !record.value.is_consensus_member() {
                return Ok(Judged::Done(Removal { node: *node, verdict: None, revision: None }));
            }
            // Its turn must not come meanwhile.
            let transaction = Transaction::new().if_absent(layout::membership_intent());
            let transaction = without_role(dequeue(transaction, observation, *node), record);
            return Ok(Judged::Write { transaction, verdict: None, is_open: false });
        }
        let verdict = if is_voter {
            let reachable = self.reachable(observation).await?;
            let verdict = judge(&observation.voter_names(), &reachable, operation);
            Some(verdict.map_err(|source| RemovalError::Refused { node: *node, source })?)
        } else {
            None
        };
        let key: PublicKey = match (record, open) {
            (Some(record), _) => record.value.public_key,
            (None, Some(open)) => open.value.public_key,
            (None, None) => return Err(RemovalError::NoSuchNode(*node)),
        };
        let transaction = self.begin(state, observation, operation, &key, reason).await?;
        Ok(Judged::Write { transaction, verdict, is_open: true })
    }

    /// The nodes whose members have answered just now.
    pub(super) async fn reachable(&self, observation: &Observation) -> Result<BTreeSet<NodeId>, MembershipError> {
        let survey = self.0.consensus.survey().await?;
        let reachable = survey.members.iter().filter(|surveyed| surveyed.is_reachable());
        Ok(reachable.map(|surveyed| observation.name_of(&surveyed.member)).collect())
    }

    /// Waits until a removal is done: the member is gone, and so is the role.
    ///
    /// # Errors
    ///
    /// When it was given up, or is not done within `deadline`. It goes on also then, and also without anybody waiting.
    pub async fn removed(
        &self,
        state: &LeaderState,
        removal: &Removal,
        deadline: Duration,
    ) -> Result<(), RemovalError> {
        let Some(mut revision) = removal.revision else { return Ok(()) };
        let deadline = Instant::now() + deadline;
        let node = removal.node;
        loop {
            let observation = match timeout_at(deadline, self.observe(state)).await {
                Ok(observation) => observation?,
                Err(_) => return Err(self.under_way(node)),
            };
            if observation.intent.as_ref().is_none_or(|open| open.value.operation != Operation::Remove(node)) {
                let still = observation.voters().contains(&node);
                return if still { Err(self.withdrawn(node)) } else { Ok(()) };
            }
            revision = revision.max(observation.revision);
            let mut watch = state.state().root().watch_key(layout::membership_intent(), revision);
            let changed = async {
                tokio::select! {
                    // An end that is too long ago to be watched is found by looking.
                    _ = watch.next() => Ok(()),
                    () = state.lost() => Err(StateError::LostLeadership),
                }
            };
            match timeout_at(deadline, changed).await {
                Ok(changed) => changed?,
                Err(_) => return Err(self.under_way(node)),
            }
        }
    }

    fn under_way(&self, node: NodeId) -> RemovalError {
        let progress = self.0.progress.borrow();
        let waiting_for = progress.as_ref().map_or_else(|| "nothing is known yet".into(), |it| it.waiting_for.clone());
        RemovalError::UnderWay { node, waiting_for }
    }

    fn withdrawn(&self, node: NodeId) -> RemovalError {
        let known = self.0.withdrawn.borrow().clone();
        let reason = known.filter(|withdrawn| withdrawn.node == node).map(|withdrawn| withdrawn.reason);
        RemovalError::Withdrawn { node, reason: reason.unwrap_or_else(|| "the removal was withdrawn".into()) }
    }
}

/// What is to be written.
pub(super) enum Judged {
    Done(Removal),
    Write { transaction: Transaction, verdict: Option<Verdict>, is_open: bool },
}
