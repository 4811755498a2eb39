//! The loop around the plan: look, decide, do one thing, and again; then sleep until something happens.

use std::time::Duration;

use polis_consensus::{MembershipError, Transaction, Watch};
use polis_identity::NodeId;
use polis_supervisor::{RunnableResult, with_causes};
use tokio::time::{Instant, sleep};

use super::Members;
use super::margin::{Operation, names};
use super::memory::{Memory, Progress, Refused};
use super::observation::{Observation, ObserveError};
use super::plan::{GaveUp, Step, Waiting, plan};
use super::transaction::{arrived, settled, without_role};
use crate::{LeaderState, StateError, layout};

/// Time between two looks when nothing is heard: what nobody tells, such as a role that somebody else has changed, is
/// corrected within it (window W14, metropolis.md G.6).
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks while a change waits for something that is not told, as that a member answers again.
pub(super) const UNDER_WAY_INTERVAL: Duration = Duration::from_millis(250);

/// Pause after an error before the next look.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// When to look again.
pub(super) enum Next {
    AtOnce,
    In(Duration),
}

/// A step was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("the members of the cluster's consensus were not read or changed")]
    Members(#[from] MembershipError),
    #[error("the state of the members was not read or written")]
    State(#[from] StateError),
}

impl From<ObserveError> for StepError {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Members(source) => Self::Members(source),
            ObserveError::State(source) => Self::State(source),
        }
    }
}

impl Members {
    /// Does what is to be done about the members, until this leadership is found to be over. May be dropped at any time: the
    /// next leader, or the next call, goes on with what it finds.
    ///
    /// # Errors
    ///
    /// Never: what goes wrong is logged, and tried again.
    pub async fn lead(&self, state: LeaderState) -> RunnableResult {
        self.0.progress.send_replace(None);
        self.0.held_up.send_replace(None);
        tokio::select! {
            () = state.lost() => {}
            () = self.work(&state) => {}
        }
        Ok(())
    }

    async fn work(&self, state: &LeaderState) {
        let mut memory = Memory::default();
        let mut watch: Option<Watch> = None;
        let mut status = self.0.consensus.status();
        loop {
            status.mark_unchanged();
            let pause = match self.pass(state, &mut memory, &mut watch).await {
                Ok(Next::AtOnce) => continue,
                Ok(Next::In(pause)) => {
                    memory.said.clear();
                    pause
                }
                Err(error) => {
                    let text = with_causes(&error);
                    if text != memory.said {
                        tracing::warn!("changing the consensus members: {text}; it is tried again");
                        memory.said = text;
                    }
                    ERROR_PAUSE
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                // A watch that cannot go on is made anew by the next look.
                lost = changed(&mut watch) => if lost { watch = None },
                _ = status.changed() => {}
                () = self.0.reported.notified() => {}
            }
        }
    }

    /// Looks, decides, and does one step.
    async fn pass(
        &self,
        state: &LeaderState,
        memory: &mut Memory,
        watch: &mut Option<Watch>,
    ) -> Result<Next, StepError> {
        let observation = self.observe(state).await?;
        watch.get_or_insert_with(|| state.state().root().watch(layout::membership(), observation.revision));
        memory.turn_to(observation.intent.as_ref().map(|intent| intent.value.operation));
        let resting =
            |node: &NodeId| memory.resting.get(node).is_some_and(|since| since.elapsed() < self.0.budgets.rest);
        let mut world = self.world(state, &observation, memory.attempt(), &resting);
        let mut step = plan(&world);
        if matches!(step, Step::Wait(Waiting::Splitting { .. })) {
            // Who answers matters for nothing else, and asking takes a moment.
            world.reachable = self.reachable(&observation).await?;
            step = plan(&world);
        }
        if !matches!(step, Step::Idle | Step::Wait(_) | Step::Promote(_)) {
            tracing::debug!("membership: {step:?}");
        }
        self.perform(state, &observation, memory, &step).await
    }

    async fn perform(
        &self,
        state: &LeaderState,
        observation: &Observation,
        memory: &mut Memory,
        step: &Step,
    ) -> Result<Next, StepError> {
        let consensus = &self.0.consensus;
        match step {
            Step::Idle => return Ok(Next::In(RECONCILE_INTERVAL)),
            Step::Wait(waiting) => {
                let text = waiting_text(waiting);
                self.say(memory, text.clone());
                return Ok(Next::In(match waiting {
                    Waiting::LeaderDoubtful | Waiting::Full | Waiting::NobodyReady => RECONCILE_INTERVAL,
                    Waiting::Splitting { ready, .. } => {
                        memory.note_splits(*ready, text);
                        // Nothing is expected of the joiner meanwhile.
                        memory.advance();
                        UNDER_WAY_INTERVAL
                    }
                }));
            }
            Step::UseNetworkTiming { joiner } => return self.use_network_timing(observation, *joiner).await,
            Step::Begin(operation) => return self.begin_addition(state, observation, *operation).await,
            Step::AddLearner(node) => {
                let Some(open) = &observation.intent else { return Ok(Next::AtOnce) };
                consensus.membership().add_learner("membership/add-learner", &open.value.public_key).await?;
                tracing::info!("{node} is a learner of the consensus now");
                memory.advance();
            }
            Step::GrantRole(node) => {
                let Some(record) = observation.records.get(node) else { return Ok(Next::AtOnce) };
                let transaction = self.grant_role(state, observation, record).await?;
                return settle(state, "membership/grant-role", transaction).await;
            }
            Step::Promote(node) => return self.promote(observation, memory, *node).await,
            Step::GiveUp { node, reason } => {
                let next = settle(state, "membership/give-up", self.give_up(observation, *node, *reason)).await?;
                tracing::warn!("{node} does not become a consensus member now: {}", reason.text(&self.0.budgets));
                match reason {
                    GaveUp::NotStarted | GaveUp::NoProgress | GaveUp::NotSplit => {
                        memory.resting.retain(|_, since| since.elapsed() < self.0.budgets.rest);
                        memory.resting.insert(*node, Instant::now());
                    }
                    // It is not ready anyhow until it is up.
                    GaveUp::NodeGone => {}
                }
                return Ok(next);
            }
            Step::HandOver => return self.hand_over(state, observation, memory).await,
            Step::Remove(node) => {
                let Some(open) = &observation.intent else { return Ok(Next::AtOnce) };
                if observation.voters().contains(node)
                    && let Some(next) = self.refuse(observation, memory, Operation::Remove(*node)).await?
                {
                    return Ok(next);
                }
                memory.accept();
                consensus.membership().remove("membership/remove", &open.value.public_key).await?;
                tracing::info!("{node} is no member of the consensus any more");
            }
            Step::Withdraw(node) => {
                let transaction = self.end(state, observation).await?;
                let reason = memory.refused.as_ref().map_or(&memory.unsplit, |(_, reason)| reason).clone();
                tracing::warn!("{node} stays a consensus member: {reason}");
                self.0.withdrawn.send_replace(Some(Refused { node: *node, reason }));
                return settle(state, "membership/withdraw", transaction).await;
            }
            Step::Complete(Operation::Add(node)) => {
                let transaction = arrived(self.end(state, observation).await?, observation, *node);
                tracing::info!("{node} is a consensus member now");
                return settle(state, "membership/complete", transaction).await;
            }
            Step::Complete(Operation::Remove(node)) => {
                let transaction = self.end_removal(state, observation, *node).await?;
                return settle(state, "membership/complete", transaction).await;
            }
            Step::Dequeue(node) => {
                let transaction = arrived(Transaction::new(), observation, *node);
                return settle(state, "membership/dequeue", transaction).await;
            }
            Step::RemoveStranger { id, is_learner } => {
                return self.remove_stranger(observation, memory, *id, *is_learner).await;
            }
            Step::GiveRole(node) => {
                let Some(record) = observation.records.get(node) else { return Ok(Next::AtOnce) };
                tracing::warn!("{node} is a consensus member without the role; it gets it");
                let transaction = self.grant_role(state, observation, record).await?;
                return settle(state, "membership/give-role", transaction).await;
            }
            Step::TakeRole(node) => {
                let Some(record) = observation.records.get(node) else { return Ok(Next::AtOnce) };
                tracing::warn!("{node} has the role of a consensus member and is none; the role is taken");
                // With another certificate its node knows, also when it was away meanwhile, that it is to be another member.
                let transaction = match state.revoke_peer(node).await? {
                    Some(change) => change.add_to(Transaction::new()),
                    None => Transaction::new(),
                };
                let transaction = without_role(transaction, record);
                return settle(state, "membership/take-role", transaction).await;
            }
            Step::Relist => {
                let transaction = self.list(state, observation, &settled(observation.voters())).await?;
                return settle(state, "membership/relist", transaction).await;
            }
            Step::Finish(node) => {
                let Some(transaction) = observation.forget_removal(*node) else { return Ok(Next::AtOnce) };
                tracing::info!("the removal of {node} is finished: enough members have heard of it");
                return settle(state, "membership/finish", transaction).await;
            }
            Step::Abandon { node, deaf } => {
                let Some(transaction) = observation.forget_removal(*node) else { return Ok(Next::AtOnce) };
                let names = names(deaf);
                tracing::warn!(
                    "{names} could still help {node}, which was removed, to open its data, and will not hear of the removal, as it was \
                     deleted: see to it that they never run together, or erase them"
                );
                return settle(state, "membership/finish", transaction).await;
            }
        }
        Ok(Next::AtOnce)
    }

    /// Publishes what is being waited for, if a change is under way.
    pub(super) fn say(&self, memory: &Memory, waiting_for: String) {
        let Some(operation) = memory.change else { return };
        let since = memory.began.unwrap_or_else(Instant::now);
        self.0.progress.send_replace(Some(Progress { operation, since, waiting_for }));
    }
}

/// Makes a transaction. One that somebody else was faster with is decided anew.
pub(super) async fn settle(
    state: &LeaderState,
    site: &'static str,
    transaction: Transaction,
) -> Result<Next, StepError> {
    state.attempt(site, transaction).await?;
    Ok(Next::AtOnce)
}

/// Waits for a change of what is watched; whether the watch has come to its end.
async fn changed(watch: &mut Option<Watch>) -> bool {
    match watch {
        Some(watch) => watch.next().await.is_err(),
        None => std::future::pending().await,
    }
}

fn waiting_text(waiting: &Waiting) -> String {
    let text = match waiting {
        Waiting::LeaderDoubtful => {
            "the leader is not both a node of the cluster and a consensus member with a vote; another node is to lead"
        }
        Waiting::Full => "the cluster has as many consensus members as it may have",
        Waiting::NobodyReady => "no node that waits is up and healthy",
        Waiting::Splitting { nodes, ready, needed } => {
            let names = if nodes.is_empty() { "members that do not answer".to_owned() } else { names(nodes) };
            return format!(
                "the members split the keys of their data, so that they come back after a power failure before and after the \
                 change: {ready} are done, {needed} must be; waiting for {names}"
            );
        }
    };
    text.to_owned()
}
