//! A small cluster for plans to act on: etcd's members, the records, and leaders that die between any two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_identity::NodeId;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::margin::{self, MAX_MEMBERS, Operation};
use super::super::plan::{Attempt, Budgets, Intent, MemberFacts, NodeFacts, Step, Waiter, World, plan};
use super::node;

/// Nodes that a cluster has at most; one more than can be members.
const NODES: usize = MAX_MEMBERS + 1;

/// Steps after which a cluster without faults must be settled. A join takes six, and at most all nodes join.
const STEPS_TO_SETTLE: usize = 400;

/// A member of etcd.
#[derive(Clone, Debug)]
struct EtcdMember {
    id: u64,
    node: NodeId,
    is_learner: bool,
}

/// The cluster.
pub(crate) struct Cluster {
    random: StdRng,
    /// What has happened, for whoever must understand a failure.
    events: Vec<String>,
    members: Vec<EtcdMember>,
    next_id: u64,
    records: BTreeMap<NodeId, NodeFacts>,
    intent: Option<Intent>,
    queue: Vec<NodeId>,
    listed: BTreeSet<NodeId>,
    epoch: u64,
    /// Nodes that run and are reached.
    alive: BTreeSet<NodeId>,
    /// Nodes whose etcd never starts.
    broken: BTreeSet<NodeId>,
    leader: Option<NodeId>,
    /// In the leader's memory, which dies with it.
    network_timing: bool,
    attempt: Attempt,
    /// Who is to be a member in the end.
    wanted: BTreeSet<NodeId>,
}

impl Cluster {
    /// A founder and nodes that are up.
    pub(crate) fn new(seed: u64) -> Self {
        let up = NodeFacts { is_up: true, ..NodeFacts::default() };
        let mut records: BTreeMap<NodeId, NodeFacts> = (0..NODES).map(|index| (node(index), up)).collect();
        records.get_mut(&node(0)).unwrap().has_role = true;
        Self {
            random: StdRng::seed_from_u64(seed),
            events: vec![format!("seed {seed}")],
            members: vec![EtcdMember { id: 1, node: node(0), is_learner: false }],
            next_id: 2,
            alive: records.keys().copied().collect(),
            records,
            intent: None,
            queue: Vec::new(),
            listed: BTreeSet::from([node(0)]),
            epoch: 1,
            broken: BTreeSet::new(),
            leader: Some(node(0)),
            network_timing: false,
            attempt: Attempt::default(),
            wanted: BTreeSet::from([node(0)]),
        }
    }

    fn voters(&self) -> BTreeSet<NodeId> {
        self.members.iter().filter(|member| !member.is_learner).map(|member| member.node).collect()
    }

    fn has_quorum(&self) -> bool {
        margin::Margin::of(&self.voters(), &self.alive).spare() >= 0
    }

    /// One thing, by chance: mostly a step of the leader.
    pub(crate) fn something_happens(&mut self) {
        let any = node(self.random.random_range(0..NODES));
        match self.random.random_range(0..100) {
            0..=9 => self.want(any),
            10..=14 => self.want_no_more(any),
            15..=19 => {
                self.event(format!("{any} dies"));
                self.alive.remove(&any);
            }
            20..=29 => {
                self.event(format!("{any} is back"));
                self.alive.insert(any);
            }
            30..=32 => {
                self.event(format!("the etcd of {any} does not start any more"));
                if !self.voters().contains(&any) {
                    self.broken.insert(any);
                }
            }
            33..=35 => {
                self.broken.remove(&any);
            }
            36..=42 => self.lose_leader(),
            43..=44 => self.delete(any),
            45..=47 => {
                self.event("somebody else changes a role".into());
                if let Some(record) = self.records.get_mut(&any) {
                    record.has_role = !record.has_role;
                }
            }
            48..=50 => {
                let pause = Duration::from_secs(self.random.random_range(1..400));
                self.attempt.stalled_for += pause;
                self.attempt.refused_for += pause;
            }
            _ => {
                self.step();
            }
        }
        self.check_invariants();
    }

    /// An operator asks for the role; refused where the service refuses.
    fn want(&mut self, node: NodeId) {
        let leaves = self.intent.is_some_and(|intent| intent.operation == Operation::Remove(node));
        if self.has_quorum() && self.alive.contains(&node) && self.records.contains_key(&node) && !leaves {
            self.event(format!("{node} is to be a member"));
            self.wanted.insert(node);
            if !self.queue.contains(&node) && !self.members.iter().any(|member| member.node == node) {
                self.queue.push(node);
            }
        }
    }

    /// An operator takes the role; refused where the service refuses.
    fn want_no_more(&mut self, node: NodeId) {
        let operation = Operation::Remove(node);
        let allowed = margin::judge(&self.voters(), &self.alive, operation).is_ok();
        // A change that is under way is waited for, unless it is the very addition.
        let free = self.intent.is_none_or(|intent| intent.operation == Operation::Add(node));
        if self.has_quorum() && allowed && free {
            self.event(format!("{node} is to be no member"));
            self.wanted.remove(&node);
            self.queue.retain(|waiting| *waiting != node);
            if self.members.iter().any(|member| member.node == node) || self.intent.is_some() {
                self.begin(operation);
            }
        }
    }

    /// A node is deleted with all bypasses that there are.
    fn delete(&mut self, node: NodeId) {
        let is_last = self.records.len() == 1 || self.voters() == BTreeSet::from([node]);
        if self.has_quorum() && self.leader != Some(node) && !is_last {
            self.event(format!("{node} is deleted"));
            self.records.remove(&node);
            self.wanted.remove(&node);
        }
    }

    fn lose_leader(&mut self) {
        self.event("the leader is lost".into());
        self.leader = None;
        self.attempt = Attempt::default();
    }

    fn elect(&mut self) {
        if self.leader.is_some_and(|leader| !self.alive.contains(&leader) || !self.voters().contains(&leader)) {
            self.lose_leader();
        }
        if self.leader.is_none() && self.has_quorum() {
            // A node that was deleted stops by itself.
            let mut able: Vec<NodeId> = self.voters().intersection(&self.alive).copied().collect();
            able.retain(|node| self.records.contains_key(node));
            if able.is_empty() {
                return;
            }
            self.leader = Some(able[self.random.random_range(0..able.len())]);
            self.network_timing = self.voters().len() > 1;
        }
    }

    fn world(&self) -> World {
        let known = |node: NodeId| {
            let named = self.intent.is_some_and(|intent| match intent.operation {
                Operation::Add(named) | Operation::Remove(named) => named == node,
            });
            (self.records.contains_key(&node) || named).then_some(node)
        };
        let member = |member: &EtcdMember| MemberFacts {
            id: member.id,
            node: known(member.node),
            is_learner: member.is_learner,
        };
        let waiter = |node: &NodeId| Waiter { node: *node, is_ready: self.alive.contains(node) };
        World {
            leader: self.leader,
            members: self.members.iter().map(member).collect(),
            nodes: self.records.clone(),
            intent: self.intent,
            queue: self.queue.iter().map(waiter).collect(),
            listed: self.listed.clone(),
            network_timing: self.network_timing,
            attempt: self.attempt,
            budgets: Budgets::default(),
        }
    }

    /// One step of the leader, if there is one; whether it did anything.
    fn step(&mut self) -> bool {
        self.elect();
        if self.leader.is_none() || !self.has_quorum() {
            return false;
        }
        let step = plan(&self.world());
        self.event(format!("step {step:?}"));
        self.perform(&step)
    }

    fn perform(&mut self, step: &Step) -> bool {
        match step {
            Step::Idle | Step::Wait(_) => return false,
            Step::UseNetworkTiming { .. } => self.network_timing = true,
            Step::Begin(operation) => {
                assert_eq!(self.intent, None, "one change at a time: {:#?}", self.events);
                self.begin(*operation);
            }
            Step::AddLearner(node) => {
                assert!(!self.members.iter().any(|member| member.is_learner), "etcd takes one: {:#?}", self.events);
                self.members.push(EtcdMember { id: self.next_id, node: *node, is_learner: true });
                self.next_id += 1;
                self.attempt = Attempt::default();
            }
            Step::GrantRole(node) | Step::GiveRole(node) => self.records.get_mut(node).unwrap().has_role = true,
            Step::TakeRole(node) => self.records.get_mut(node).unwrap().has_role = false,
            Step::Promote(node) => return self.promote(*node),
            Step::GiveUp { node, .. } => {
                self.intent = Some(Intent { operation: Operation::Remove(*node) });
                if let Some(record) = self.records.get_mut(node) {
                    record.has_role = false;
                    self.queue.retain(|waiting| waiting != node);
                    self.queue.push(*node);
                }
                self.attempt = Attempt::default();
            }
            Step::HandOver => {
                let mut others: Vec<NodeId> = self.voters().intersection(&self.alive).copied().collect();
                others.retain(|node| Some(*node) != self.leader && self.records.contains_key(node));
                if others.is_empty() {
                    return false;
                }
                self.leader = Some(others[self.random.random_range(0..others.len())]);
                self.attempt = Attempt::default();
            }
            Step::Remove(node) => return self.remove(*node),
            Step::Withdraw(node) => {
                self.intent = None;
                self.list();
                // Whoever asked was told that it was not done.
                if self.records.contains_key(node) {
                    self.wanted.insert(*node);
                }
            }
            Step::Complete(operation) => {
                match operation {
                    Operation::Add(node) => self.queue.retain(|waiting| waiting != node),
                    Operation::Remove(node) => {
                        if let Some(record) = self.records.get_mut(node) {
                            record.has_role = false;
                        }
                    }
                }
                self.intent = None;
                self.list();
            }
            Step::Dequeue(node) => self.queue.retain(|waiting| waiting != node),
            Step::RemoveStranger { id, .. } => {
                let Some(member) = self.members.iter().find(|member| member.id == *id).cloned() else { return false };
                return self.remove(member.node);
            }
            Step::Relist => self.list(),
        }
        true
    }

    fn begin(&mut self, operation: Operation) {
        self.intent = Some(Intent { operation });
        let mut both = self.voters();
        if let Operation::Add(node) = operation {
            both.insert(node);
        }
        self.listed = both;
        self.epoch += 1;
        self.attempt = Attempt::default();
    }

    /// A signed list of the members as they are: those that are nodes.
    fn list(&mut self) {
        self.listed = self.voters().into_iter().filter(|node| self.records.contains_key(node)).collect();
        self.epoch += 1;
    }

    fn promote(&mut self, node: NodeId) -> bool {
        let starts = self.alive.contains(&node) && !self.broken.contains(&node);
        self.attempt.has_started |= starts;
        if !starts {
            let budgets = Budgets::default();
            self.attempt.stalled_for += if self.attempt.has_started { budgets.catch_up / 3 } else { budgets.start / 3 };
            return true;
        }
        if margin::judge(&self.voters(), &self.alive, Operation::Add(node)).is_err() {
            return false;
        }
        for member in &mut self.members {
            member.is_learner &= member.node != node;
        }
        assert!(self.has_quorum(), "a promotion cost the quorum: {:#?}", self.events);
        true
    }

    fn remove(&mut self, node: NodeId) -> bool {
        if self.voters().contains(&node) && margin::judge(&self.voters(), &self.alive, Operation::Remove(node)).is_err()
        {
            self.attempt.refused_for += Duration::from_secs(5);
            return true;
        }
        self.members.retain(|member| member.node != node);
        assert!(self.has_quorum(), "a removal cost the quorum: {:#?}", self.events);
        true
    }

    /// Everybody comes back, and nothing breaks any more.
    pub(crate) fn faults_stop(&mut self) {
        self.event("faults stop".into());
        self.alive = (0..NODES).map(node).collect();
        self.broken.clear();
    }

    /// The leader acts until there is nothing to do, and then all is as it was wanted.
    pub(crate) fn check_settled(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < STEPS_TO_SETTLE, "it does not settle: {:#?}", self.events);
            self.check_invariants();
        }
        let voters = self.voters();
        let roles: BTreeSet<NodeId> =
            self.records.iter().filter(|(_, facts)| facts.has_role).map(|(node, _)| *node).collect();
        assert_eq!(self.intent, None, "{:#?}", self.events);
        assert_eq!(self.listed, voters, "{:#?}", self.events);
        assert_eq!(roles, voters, "{:#?}", self.events);
        assert!(self.members.iter().all(|member| !member.is_learner), "{:#?}", self.events);
        let missing: BTreeSet<NodeId> = self.wanted.difference(&voters).copied().collect();
        // Who was deleted is wanted no more; who is wanted and finds no room waits.
        assert!(missing.is_empty() || voters.len() == MAX_MEMBERS, "{missing:?}: {:#?}", self.events);
        assert!(voters.is_subset(&self.wanted), "{:?}: {:#?}", voters.difference(&self.wanted), self.events);
    }

    fn check_invariants(&self) {
        let voters = self.voters();
        assert!(!voters.is_empty() && voters.len() <= MAX_MEMBERS, "{:#?}", self.events);
        assert!(self.members.iter().filter(|member| member.is_learner).count() <= 1, "{:#?}", self.events);
    }

    fn event(&mut self, event: String) {
        self.events.push(event);
    }
}
