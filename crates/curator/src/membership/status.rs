//! How it stands with the members, for operators.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_consensus::{MembershipError, Survey};
use polis_identity::NodeId;
use polis_proto::api::node::Health;
use polis_proto::curator_state::SplitReport;
use polis_unlock::Epoch;
use tokio::time::Instant;

use super::Members;
use super::cold_start::{ColdStart, UnfinishedRemoval};
use super::margin::{Margin, Operation};
use super::memory::Refused;
use super::observation::{ObserveError, OpenIntent};
use crate::{LeaderState, StateError};

/// How it stands with the members.
#[derive(Clone, Debug)]
pub struct MembersStatus {
    /// How every member is at this moment.
    pub survey: Survey,
    /// The nodes of the members, in the order of the survey.
    pub nodes: Vec<NodeId>,
    /// The margin of this moment.
    pub margin: Margin,
    /// The epoch of the signed list; absent in a cluster that is older than it.
    pub epoch: Option<Epoch>,
    /// The change that is under way.
    pub change: Option<Change>,
    /// How the nodes of the members have split their keys, those that do.
    pub splits: BTreeMap<NodeId, SplitReport>,
    /// The newest list that the nodes of the members have made durable.
    pub lists: BTreeMap<NodeId, Epoch>,
    /// What it takes to come back after all members have lost power; absent if no member splits its key.
    pub cold_start: Option<ColdStart>,
    /// Removals that are not finished.
    pub unfinished: Vec<UnfinishedRemoval>,
    /// Who waits, in order. A node whose turn has come is still there.
    pub queue: Vec<QueuedNode>,
}

/// A change that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is done.
    pub operation: Operation,
    /// Why it was begun.
    pub reason: String,
    /// What is being waited for.
    pub waiting_for: String,
    /// For how long this leader has been at it.
    pub running_for: Duration,
}

/// A node that waits to become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedNode {
    /// The node.
    pub node: NodeId,
    /// Why it waits.
    pub reason: String,
    /// How often an attempt was given up.
    pub attempts: u32,
}

/// The status cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum MembersStatusError {
    /// etcd did not answer.
    #[error("the members of the cluster's consensus cannot be read")]
    Members(#[from] MembershipError),
    /// The state was not read.
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<ObserveError> for MembersStatusError {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Members(source) => Self::Members(source),
            ObserveError::State(error) => Self::State(error),
        }
    }
}

impl Members {
    /// How it stands with the members, by their answers of this moment.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or this node does not lead any more.
    pub async fn status(&self, state: &LeaderState) -> Result<MembersStatus, MembersStatusError> {
        let (observation, survey) = tokio::join!(self.observe(state), self.0.consensus.survey());
        let (observation, survey) = (observation?, survey?);
        let nodes: Vec<NodeId> = survey.members.iter().map(|it| observation.name_of(&it.member)).collect();
        let is_voter = |index: &usize| !survey.members[*index].member.is_learner;
        let voters = (0..nodes.len()).filter(is_voter).map(|index| nodes[index]).collect();
        let is_reachable = |index: &usize| survey.members[*index].is_reachable();
        let reachable = (0..nodes.len()).filter(is_reachable).map(|index| nodes[index]).collect();
        let open = observation.intent.as_ref().map(|intent| &intent.value);
        let queue = observation.queue.iter().map(|queued| {
            let node = queued.value.node;
            let health = observation
                .records
                .get(&node)
                .map(|record| self.0.heartbeats.health(record.value.state, &node, Instant::now()));
            let held_up = self.0.held_up.borrow().clone().filter(|refused| refused.node == node);
            let reason = waits_for(node, open, health, held_up.as_ref(), &queued.value.message.last_failure);
            QueuedNode { node, reason, attempts: queued.value.message.attempts }
        });
        let splits = observation.enrolments.iter();
        let splits = splits.filter_map(|(node, known)| Some((*node, known.value.split.clone()?)));
        Ok(MembersStatus {
            splits: splits.collect(),
            lists: observation.holds(),
            cold_start: observation.cold_start(&reachable),
            unfinished: observation.unfinished(),
            margin: Margin::of(&voters, &reachable),
            nodes,
            epoch: observation.list.as_ref().map(|list| list.value.list().epoch()),
            change: open.map(|open| self.change(open)),
            queue: queue.collect(),
            survey,
        })
    }

    fn change(&self, open: &OpenIntent) -> Change {
        let progress = self.0.progress.borrow().clone().filter(|progress| progress.operation == open.operation);
        let (waiting_for, running_for) = match progress {
            Some(progress) => (progress.waiting_for, progress.since.elapsed()),
            None => ("the leader is about to go on with it".into(), Duration::ZERO),
        };
        Change { operation: open.operation, reason: open.message.reason.clone(), waiting_for, running_for }
    }

    /// A change in words.
    pub(super) fn describe(&self, open: &OpenIntent) -> String {
        let change = self.change(open);
        let what = match change.operation {
            Operation::Add(node) => format!("{node} is being added"),
            Operation::Remove(node) => format!("{node} is being removed"),
        };
        format!("{what}, waiting for: {}", change.waiting_for)
    }
}

/// Why a node waits, in words.
fn waits_for(
    node: NodeId,
    open: Option<&OpenIntent>,
    health: Option<Health>,
    held_up: Option<&Refused>,
    last_failure: &str,
) -> String {
    let now = match (open.map(|open| open.operation), health) {
        (Some(Operation::Add(joiner)), _) if joiner == node => "it is being added".to_owned(),
        (_, None) => "the node was deleted".to_owned(),
        (_, Some(health @ (Health::Unknown | Health::HeartbeatTimeout | Health::Invalid))) => {
            format!("the node is not healthy ({}); only a healthy node is added", health.as_str_name())
        }
        (Some(Operation::Add(other)), Some(Health::Healthy)) => {
            format!("{other} is being added, and members are added one at a time")
        }
        (Some(Operation::Remove(other)), Some(Health::Healthy)) => {
            format!("{other} is being removed, and members are changed one at a time")
        }
        (None, Some(Health::Healthy)) => match held_up {
            Some(Refused { node: _, reason }) => format!("it is not added now: {reason}"),
            None => "its turn comes next, or after those before it".to_owned(),
        },
    };
    if last_failure.is_empty() { now } else { format!("{now}. The last attempt was given up: {last_failure}") }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::node;
    use super::*;

    #[test]
    fn who_waits_is_told_what_is_in_the_way() {
        let held_up = Refused { node: node(1), reason: "it would cost the cluster its quorum".into() };
        for (health, held_up, last_failure, expected) in [
            (Some(Health::Healthy), None, "", "its turn comes next"),
            (Some(Health::Healthy), Some(&held_up), "", "it is not added now: it would cost the cluster its quorum"),
            (Some(Health::HeartbeatTimeout), Some(&held_up), "", "the node is not healthy (HEALTH_HEARTBEAT_TIMEOUT)"),
            (None, Some(&held_up), "", "the node was deleted"),
            (Some(Health::Healthy), None, "too slow", "The last attempt was given up: too slow"),
        ] {
            let reason = waits_for(node(1), None, health, held_up, last_failure);
            assert!(reason.contains(expected), "{reason:?} instead of {expected:?}");
        }
    }
}
