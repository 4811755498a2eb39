//! The steps that call etcd and have something to wait for or to check.

use std::time::Duration;

use polis_consensus::{MembershipError, Pace, Timing};
use polis_identity::NodeId;
use tokio::time::{Instant, sleep, timeout};

use super::executor::{Next, StepError, UNDER_WAY_INTERVAL, settle};
use super::margin::{Operation, judge};
use super::memory::{Memory, Refused};
use super::observation::Observation;
use super::{Members, RECONCILE_INTERVAL};
use crate::LeaderState;

/// How long one step waits for a joiner before the world is looked at again.
const PROMOTION_TIME: Duration = Duration::from_secs(2);

/// Time between two tries within that: a joiner starts in a tenth of a second and catches up in less, and others wait.
const PROMOTION_PAUSE: Duration = Duration::from_millis(10);

/// How long the restart of the only member may take until it serves again. It takes a fraction of a second.
const RESTART_DEADLINE: Duration = Duration::from_secs(10);

/// How long measuring the way to a joiner may take. One that is farther is treated as such.
const MEASURING_DEADLINE: Duration = Duration::from_millis(700);

/// How long after a hand-over the new leader has time to go on with the removal of the one before.
const HAND_OVER_TIME: Duration = Duration::from_secs(5);

impl Members {
    /// Restarts the only member. The leadership usually ends with it, and begins anew.
    pub(super) async fn use_network_timing(
        &self,
        observation: &Observation,
        joiner: NodeId,
    ) -> Result<Next, StepError> {
        let address = observation.records.get(&joiner).and_then(|record| record.value.address());
        let pace = match address {
            Some(address) => match self.0.consensus.round_trip(address, MEASURING_DEADLINE).await {
                Some(round_trip) => Pace::of(round_trip, Duration::ZERO),
                None => Pace::Remote,
            },
            None => Pace::default(),
        };
        let mut status = self.0.consensus.status();
        let before = status.borrow().process_id;
        self.0.consensus.set_timing(Timing::Network(pace));
        let restarted = status.wait_for(|status| status.is_ready() && status.process_id != before);
        // Whether or not it is, the next look tells.
        let _ = timeout(RESTART_DEADLINE, restarted).await;
        Ok(Next::AtOnce)
    }

    pub(super) async fn begin_addition(
        &self,
        state: &LeaderState,
        observation: &Observation,
        operation: Operation,
    ) -> Result<Next, StepError> {
        let (Operation::Add(node) | Operation::Remove(node)) = operation;
        let Some(record) = observation.records.get(&node) else { return Ok(Next::AtOnce) };
        let mut reachable = self.reachable(observation).await?;
        // It has no member yet that could answer; it is asked before it gets its vote.
        reachable.insert(node);
        let refusal = judge(&observation.voter_names(), &reachable, operation).err();
        self.0.held_up.send_replace(refusal.as_ref().map(|refusal| Refused { node, reason: refusal.to_string() }));
        if refusal.is_some() {
            return Ok(Next::In(RECONCILE_INTERVAL));
        }
        let reason = "an operator has given the node the role";
        let transaction = self.begin(state, observation, operation, &record.value.public_key, reason).await?;
        tracing::info!("{node} is being added to the consensus");
        settle(state, "membership/begin", transaction).await
    }

    /// Gives the learner its vote, once it answers and has caught up.
    pub(super) async fn promote(
        &self,
        observation: &Observation,
        memory: &mut Memory,
        node: NodeId,
    ) -> Result<Next, StepError> {
        let (Some(open), Some(member)) = (&observation.intent, observation.member(node)) else {
            return Ok(Next::AtOnce);
        };
        let consensus = &self.0.consensus;
        let until = Instant::now() + PROMOTION_TIME;
        while Instant::now() < until {
            // Where the leader does not know how far the learner is, etcd is simply asked to promote it.
            if let Some(progress) = consensus.catch_up(member.id).await
                && !memory.note_progress(progress)
            {
                let what = if memory.has_started { "catches up" } else { "has not answered yet" };
                self.say(memory, format!("the consensus member of {node} {what}"));
                sleep(PROMOTION_PAUSE).await;
                continue;
            }
            let reachable = self.reachable(observation).await?;
            if let Err(refusal) = judge(&observation.voter_names(), &reachable, Operation::Add(node)) {
                self.say(memory, refusal.to_string());
                return Ok(Next::In(UNDER_WAY_INTERVAL));
            }
            memory.has_started = true;
            let key = &open.value.public_key;
            match consensus.membership().promote("membership/promote", key, Duration::ZERO).await {
                Ok(_) => return Ok(Next::AtOnce),
                Err(MembershipError::NotInSync { .. }) => {
                    self.say(memory, format!("the consensus member of {node} catches up"));
                    sleep(PROMOTION_PAUSE).await;
                }
                Err(
                    error @ (MembershipError::Etcd(_) | MembershipError::NotAMember(_) | MembershipError::NotTheLeader),
                ) => return Err(error.into()),
            }
        }
        Ok(Next::In(UNDER_WAY_INTERVAL))
    }

    /// Judges a removal with the answers of this moment. `Some`: it is refused for now.
    pub(super) async fn refuse(
        &self,
        observation: &Observation,
        memory: &mut Memory,
        operation: Operation,
    ) -> Result<Option<Next>, StepError> {
        let reachable = self.reachable(observation).await?;
        match judge(&observation.voter_names(), &reachable, operation) {
            Ok(_) => Ok(None),
            Err(refusal) => {
                self.say(memory, refusal.to_string());
                memory.refuse(refusal.to_string());
                Ok(Some(Next::In(UNDER_WAY_INTERVAL)))
            }
        }
    }

    /// Hands leadership to the member that is best at hand.
    pub(super) async fn hand_over(
        &self,
        state: &LeaderState,
        observation: &Observation,
        memory: &mut Memory,
    ) -> Result<Next, StepError> {
        let own = *state.node_id();
        if let Some(next) = self.refuse(observation, memory, Operation::Remove(own)).await? {
            return Ok(next);
        }
        let survey = self.0.consensus.survey().await?;
        let others = survey.members.iter().filter(|it| it.is_reachable() && !it.member.is_learner);
        let next = others
            .filter_map(|it| Some((it.lag, observation.records.get(&observation.node_of(&it.member)?)?)))
            .filter(|(_, record)| record.value.id != own)
            .min_by_key(|(lag, _)| lag.unwrap_or(u64::MAX));
        let Some((_, next)) = next else {
            memory.refuse("no other member can take over the leadership".into());
            return Ok(Next::In(UNDER_WAY_INTERVAL));
        };
        memory.accept();
        self.say(memory, format!("{} takes over the leadership", next.value.id));
        match self.0.consensus.membership().move_leader("membership/hand-over", &next.value.public_key).await {
            // The new leader goes on, as soon as it has claimed the leadership of the cluster, too.
            Ok(()) => {
                memory.handed_over = Some(Instant::now());
                Ok(Next::In(UNDER_WAY_INTERVAL))
            }
            Err(MembershipError::NotTheLeader)
                if memory.handed_over.is_some_and(|at| at.elapsed() < HAND_OVER_TIME) =>
            {
                Ok(Next::In(UNDER_WAY_INTERVAL))
            }
            // Another member leads raft, and its node does not claim the leadership of the cluster: it will, once this one
            // gives no more signs of life.
            Err(MembershipError::NotTheLeader) => {
                let Some(open) = &observation.intent else { return Ok(Next::AtOnce) };
                self.0.consensus.membership().remove("membership/remove", &open.value.public_key).await?;
                Ok(Next::In(UNDER_WAY_INTERVAL))
            }
            Err(
                error @ (MembershipError::Etcd(_) | MembershipError::NotAMember(_) | MembershipError::NotInSync { .. }),
            ) => Err(error.into()),
        }
    }

    pub(super) async fn remove_stranger(
        &self,
        observation: &Observation,
        memory: &mut Memory,
        id: u64,
        is_learner: bool,
    ) -> Result<Next, StepError> {
        let Some(member) = observation.members.iter().find(|member| member.id == id) else {
            return Ok(Next::AtOnce);
        };
        if !is_learner {
            let name = observation.name_of(member);
            let reachable = self.reachable(observation).await?;
            if let Err(refusal) = judge(&observation.voter_names(), &reachable, Operation::Remove(name)) {
                let obstacle =
                    format!("the consensus has a member {id:016x} that is no node of the cluster; it stays: {refusal}");
                if memory.is_news(&obstacle) {
                    tracing::warn!("{obstacle}");
                }
                return Ok(Next::In(RECONCILE_INTERVAL));
            }
        }
        match observation.node_of(member).filter(|node| observation.records.contains_key(node)) {
            Some(node) => {
                tracing::warn!("{node} is a learner of the consensus, and is not to become a member; it is removed")
            }
            None => {
                tracing::warn!("the consensus has a member {id:016x} that is no node of the cluster; it is removed")
            }
        }
        self.0.consensus.membership().remove_member("membership/remove-stranger", id).await?;
        Ok(Next::AtOnce)
    }
}
