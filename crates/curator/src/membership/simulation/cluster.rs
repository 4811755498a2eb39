//! A small cluster for plans to act on: etcd's members, the records, and leaders that die between any two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_identity::NodeId;
use polis_unlock::{Standing, quorum};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::margin::{self, MAX_MEMBERS, Operation};
use super::super::plan::{Attempt, Budgets, Intent, MemberFacts, NodeFacts, Step, Waiter, Waiting, World, plan};
use super::super::splits::members_needed;
use super::keys::Keys;
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
    keys: Keys,
    /// A member's node was deleted past everything, and not all have split their keys since it was removed.
    is_disturbed: bool,
    /// The last step was to wait for splits.
    waits_for_splits: bool,
    /// How many removals of members that needed shares were finished while somebody had not heard of it yet, and at all.
    pub(crate) finished: [usize; 2],
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
        let mut random = StdRng::seed_from_u64(seed);
        let all: BTreeSet<NodeId> = records.keys().copied().collect();
        let plain = all.iter().filter(|_| random.random_range(0..6) == 0).copied().collect();
        Self {
            random,
            events: vec![format!("seed {seed}")],
            members: vec![EtcdMember { id: 1, node: node(0), is_learner: false }],
            next_id: 2,
            alive: records.keys().copied().collect(),
            records,
            intent: None,
            queue: Vec::new(),
            keys: Keys::new(node(0), &all, &plain),
            is_disturbed: false,
            waits_for_splits: false,
            finished: [0; 2],
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

    /// So many nodes more become members, without anything in the way.
    pub(crate) fn grow_by(&mut self, count: usize) {
        for index in 1..=count {
            self.want(node(index));
        }
        self.check_settled();
    }

    /// One thing, by chance: mostly a step of the leader.
    pub(crate) fn something_happens(&mut self) {
        let any = node(self.random.random_range(0..NODES));
        match self.random.random_range(0..150) {
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
                if self.attempt.unsplit_for > Duration::ZERO {
                    self.attempt.unsplit_for += pause;
                }
            }
            51..=65 => self.some_follow(Keys::hear),
            66..=80 => self.some_follow(Keys::split),
            81..=95 => self.some_follow(Keys::tell),
            96..=98 => {
                self.event(format!("{any} splits nothing any more"));
                self.keys.lazy.insert(any);
            }
            99..=105 => {
                self.keys.lazy.remove(&any);
            }
            _ => {
                self.step();
            }
        }
        self.check_invariants();
    }

    /// Half of the nodes go one step on after the list.
    fn some_follow(&mut self, step: fn(&mut Keys, NodeId) -> bool) {
        for index in 0..NODES {
            if self.hears(node(index)) && self.random.random_bool(0.5) {
                step(&mut self.keys, node(index));
            }
        }
    }

    /// Whether a node is told by the leader, and tells it.
    fn hears(&self, node: NodeId) -> bool {
        self.has_quorum() && self.alive.contains(&node) && self.records.contains_key(&node)
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
            self.keys.holds.remove(&node);
            self.wanted.remove(&node);
            self.is_disturbed |= self.voters().contains(&node);
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
            listed: self.keys.list.keys().copied().collect(),
            epoch: Some(self.keys.epoch),
            is_list_stale: false,
            keys: self.keys.told.clone(),
            holds: self.keys.holds.clone(),
            reachable: self.alive.clone(),
            unfinished: self.keys.unfinished.clone(),
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
        self.waits_for_splits = matches!(step, Step::Wait(Waiting::Splitting { .. }));
        self.event(format!("step {step:?}"));
        self.perform(&step)
    }

    fn perform(&mut self, step: &Step) -> bool {
        match step {
            Step::Wait(Waiting::Splitting { .. }) => {
                // Time passes where the test says so.
                self.attempt.unsplit_for = self.attempt.unsplit_for.max(Duration::from_millis(1));
                return false;
            }
            Step::Idle | Step::Wait(Waiting::LeaderDoubtful | Waiting::Full | Waiting::NobodyReady) => return false,
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
                self.attempt = Attempt::default();
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
                self.attempt = Attempt::default();
                self.intent = None;
                self.list();
            }
            Step::Dequeue(node) => self.queue.retain(|waiting| waiting != node),
            Step::RemoveStranger { id, .. } => {
                let Some(member) = self.members.iter().find(|member| member.id == *id).cloned() else { return false };
                // Nobody has been asked to split anything for this.
                self.is_disturbed |= !member.is_learner;
                return self.remove(member.node);
            }
            Step::Relist => self.list(),
            Step::Finish(node) => {
                self.finished[0] += usize::from(self.keys.lacking(*node) > 0);
                self.finished[1] += 1;
                let is_node = |node: &NodeId| self.records.contains_key(node);
                let is_helped = self.keys.could_be_helped(*node, is_node);
                assert!(!is_helped, "{node}: {:#?} {:#?}", self.keys, self.events);
                self.keys.unfinished.retain(|known| known.node != *node);
            }
            Step::Abandon { node, deaf } => {
                assert!(deaf.iter().all(|node| !self.records.contains_key(node)), "{:#?}", self.events);
                self.keys.unfinished.retain(|known| known.node != *node);
            }
        }
        true
    }

    fn begin(&mut self, operation: Operation) {
        self.intent = Some(Intent { operation });
        let mut list = self.settled_list();
        match operation {
            Operation::Add(node) => {
                list.insert(node, Standing::Joins);
            }
            Operation::Remove(node) => {
                list.entry(node).and_modify(|standing| *standing = Standing::Leaves);
            }
        }
        self.publish(list);
        self.attempt = Attempt::default();
    }

    /// A signed list of the members as they are: those that are nodes.
    fn list(&mut self) {
        self.publish(self.settled_list());
    }

    fn publish(&mut self, list: BTreeMap<NodeId, Standing>) {
        let all: Vec<NodeId> = self.records.keys().copied().collect();
        self.keys.publish(list, &self.alive, &all);
    }

    fn settled_list(&self) -> BTreeMap<NodeId, Standing> {
        let nodes = self.voters().into_iter().filter(|node| self.records.contains_key(node));
        nodes.map(|node| (node, Standing::Stays)).collect()
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
        self.check_keys();
        true
    }

    fn remove(&mut self, node: NodeId) -> bool {
        let has_vote = self.voters().contains(&node);
        if has_vote && margin::judge(&self.voters(), &self.alive, Operation::Remove(node)).is_err() {
            self.attempt.refused_for += Duration::from_secs(5);
            return true;
        }
        self.members.retain(|member| member.node != node);
        assert!(self.has_quorum(), "a removal cost the quorum: {:#?}", self.events);
        if has_vote {
            self.check_keys();
        }
        true
    }

    /// Everybody comes back, and nothing breaks any more.
    pub(crate) fn faults_stop(&mut self) {
        self.event("faults stop".into());
        self.alive = (0..NODES).map(node).collect();
        self.broken.clear();
        self.keys.lazy.clear();
    }

    /// The leader acts until there is nothing to do, and then all is as it was wanted.
    pub(crate) fn check_settled(&mut self) {
        let mut steps = 0;
        loop {
            let has_acted = self.step();
            let all = self.alive.clone();
            let have_followed = all.into_iter().filter(|node| self.hears(*node) && self.keys.follow(*node)).count();
            if !has_acted && have_followed == 0 {
                if !self.waits_for_splits {
                    break;
                }
                self.attempt.unsplit_for += Duration::from_secs(10);
                let is_over = self.attempt.unsplit_for < Duration::from_secs(100);
                assert!(is_over, "it waits for splits for ever: {:#?}", self.events);
            }
            steps += 1;
            assert!(steps < STEPS_TO_SETTLE, "it does not settle: {:#?}", self.events);
            self.check_invariants();
        }
        let voters = self.voters();
        let roles: BTreeSet<NodeId> =
            self.records.iter().filter(|(_, facts)| facts.has_role).map(|(node, _)| *node).collect();
        assert_eq!(self.intent, None, "{:#?}", self.events);
        let settled = voters.iter().map(|node| (*node, Standing::Stays)).collect();
        assert_eq!(self.keys.list, settled, "{:#?}", self.events);
        assert_eq!(members_needed(&voters, &self.keys.told), Some(quorum(voters.len())), "{:#?}", self.events);
        assert_eq!(self.keys.unfinished, [], "{:#?}", self.events);
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
        let is_nobody_lost = self.is_disturbed || self.keys.all_come_back(&voters);
        assert!(is_nobody_lost, "not even all members come back: {:#?} {:#?}", self.keys, self.events);
    }

    /// Right after the voters have changed: a quorum of those that are left opens with every quorum, and so do all that could be
    /// asked, unless patience was at its end.
    fn check_keys(&mut self) {
        let voters = self.voters();
        let open = |node: &&NodeId| self.keys.opens_with_every_quorum(**node, &voters);
        if self.is_disturbed {
            self.is_disturbed = !voters.iter().all(|node| self.records.contains_key(node) && open(&node));
            return;
        }
        let opening = voters.iter().filter(open).count();
        assert!(opening >= quorum(voters.len()), "{:#?} {:#?}", self.keys, self.events);
        if self.attempt.unsplit_for < Budgets::default().split {
            let stuck: Vec<_> = voters.intersection(&self.alive).filter(|node| !open(node)).collect();
            assert!(stuck.is_empty(), "{stuck:?} was not waited for: {:#?} {:#?}", self.keys, self.events);
        }
    }

    fn event(&mut self, event: String) {
        self.events.push(event);
    }
}
