//! The machines, the network between them, and what the cluster keeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use polis_secret::Secret32;
use polis_unlock::{
    Action, ClusterUnlockKey, ClusterWord, Collector, Drill, DrillAction, Epoch, Event, MemberEntry, MemberList,
    NoDrill, Scheme, SignedMemberList, Standing, UnlockFile, UnlockReply, UnlockRequest, quorum, split,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::machine::{Machine, State};
use crate::nodes::{AUTHORITY, Cheap, id, keys, number};
use crate::rules::Broken;

/// A change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) node: usize,
    pub(crate) adds: bool,
}

/// What a member has reported of its key.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) epoch: Epoch,
    pub(crate) needed: u8,
    pub(crate) holders: BTreeSet<usize>,
}

/// A removal, as E counts it.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    pub(crate) node: usize,
    pub(crate) epoch: Epoch,
    pub(crate) needed: u8,
    /// Who could help the node while they have not heard of its removal.
    pub(crate) helpers: BTreeSet<usize>,
    pub(crate) is_finished: bool,
}

/// What lies in etcd.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) voters: BTreeSet<usize>,
    pub(crate) change: Option<Change>,
    /// The consensus has been told.
    pub(crate) is_called: bool,
    pub(crate) list: SignedMemberList,
    pub(crate) keys: BTreeMap<usize, ClusterUnlockKey>,
    pub(crate) reports: BTreeMap<usize, Report>,
    /// Epoch of the list that each has made durable.
    pub(crate) holds: BTreeMap<usize, Epoch>,
    pub(crate) removals: Vec<Removal>,
    pub(crate) deleted: BTreeSet<usize>,
    pub(crate) queue: VecDeque<Change>,
}

pub(crate) struct World {
    pub(crate) broken: Broken,
    pub(crate) two_confirmed: bool,
    pub(crate) machines: BTreeMap<usize, Machine>,
    pub(crate) kept: Kept,
    /// Members that were out of reach when the consensus was told, or whose ESP was put back, and have not reported since: what
    /// their absence costs is what `status` says, and not a fault of the rules.
    pub(crate) excused: BTreeSet<usize>,
    pub(crate) put_back: Option<usize>,
    /// All voters are open and in contact, and nothing is left to do.
    pub(crate) rests: bool,
    pub(crate) random: StdRng,
}

impl Clone for World {
    /// The same after all machines have lost power.
    fn clone(&self) -> Self {
        Self {
            broken: self.broken,
            two_confirmed: self.two_confirmed,
            machines: self.machines.clone(),
            kept: self.kept.clone(),
            excused: self.excused.clone(),
            put_back: self.put_back,
            rests: self.rests,
            random: StdRng::seed_from_u64(7),
        }
    }
}

impl World {
    /// A cluster of so many members that run, have split their keys and drilled.
    pub(crate) fn new(voters: usize, two_confirmed: bool, broken: Broken, seed: u64) -> Self {
        static BEGINNINGS: Mutex<BTreeMap<(usize, bool), World>> = Mutex::new(BTreeMap::new());
        let mut beginnings = BEGINNINGS.lock().expect("nobody panics with it");
        let beginning =
            beginnings.entry((voters, two_confirmed)).or_insert_with(|| Self::beginning(voters, two_confirmed));
        let mut world = Self { broken, random: StdRng::seed_from_u64(seed), ..beginning.clone() };
        drop(beginnings);
        for (node, machine) in &mut world.machines {
            let (key, report) = (world.kept.keys[node].clone(), &world.kept.reports[node]);
            machine.state = State::Open { key, verified: Some(report.epoch), next: None };
        }
        world
    }

    fn beginning(voters: usize, two_confirmed: bool) -> Self {
        let voters: BTreeSet<usize> = (0..voters).collect();
        let list = Self::plain_list(&voters, Epoch::FIRST, two_confirmed);
        let kept = Kept {
            voters: voters.clone(),
            change: None,
            is_called: false,
            list,
            keys: BTreeMap::new(),
            reports: BTreeMap::new(),
            holds: BTreeMap::new(),
            removals: Vec::new(),
            deleted: BTreeSet::new(),
            queue: VecDeque::new(),
        };
        let (broken, random) = (Broken::Nothing, StdRng::seed_from_u64(0));
        let (machines, excused) = Default::default();
        let mut world = Self { broken, two_confirmed, machines, kept, excused, put_back: None, rests: false, random };
        voters.iter().for_each(|node| world.enrol(*node));
        world.settle();
        world
    }

    pub(crate) fn enrol(&mut self, node: usize) {
        let key = self.new_key();
        self.kept.keys.insert(node, key.clone());
        self.machines.insert(node, Machine::new(node, key));
    }

    fn new_key(&mut self) -> ClusterUnlockKey {
        ClusterUnlockKey::new(Secret32::new(self.random.random()))
    }

    pub(crate) fn plain_list(voters: &BTreeSet<usize>, epoch: Epoch, two_confirmed: bool) -> SignedMemberList {
        Self::sign(voters.iter().map(|node| keys(*node).entry.clone()).collect(), epoch, two_confirmed)
    }

    pub(crate) fn list_of_both(&self, change: Change) -> SignedMemberList {
        let mut members: Vec<MemberEntry> = self.kept.voters.iter().map(|node| keys(*node).entry.clone()).collect();
        let standing = if change.adds { Standing::Joins } else { Standing::Leaves };
        members.retain(|member| member.node_id != id(change.node));
        members.push(MemberEntry { standing, ..keys(change.node).entry.clone() });
        Self::sign(members, self.kept.list.list().epoch().next(), self.two_confirmed)
    }

    fn sign(members: Vec<MemberEntry>, epoch: Epoch, two_confirmed: bool) -> SignedMemberList {
        let cluster = AUTHORITY.certificate().cluster_id();
        MemberList::new(cluster, epoch, members).with_two_confirmed(two_confirmed).sign(&AUTHORITY)
    }

    /// Whether the open members on this side are a quorum.
    pub(crate) fn runs(&self, side: bool) -> bool {
        let up = self.kept.voters.iter().filter(|node| self.is_open_on(**node, side));
        up.count() >= quorum(self.kept.voters.len())
    }

    pub(crate) fn is_open_on(&self, node: usize, side: bool) -> bool {
        self.machines.get(&node).is_some_and(|machine| machine.is_open() && machine.side == side)
    }

    /// What one machine answers to another; nothing when it cannot be reached.
    fn ask(&mut self, caller: usize, peer: usize, request: &UnlockRequest) -> Option<UnlockReply> {
        let side = self.machines[&caller].side;
        let word = if self.is_open_on(peer, side) && self.runs(side) {
            match self.kept.keys.get(&caller).filter(|_| !self.kept.deleted.contains(&caller)) {
                Some(key) => ClusterWord::Key(key.clone()),
                None => ClusterWord::NotUp,
            }
        } else {
            ClusterWord::Unavailable
        };
        let machine = self.machines.get_mut(&peer).filter(|machine| machine.is_on() && machine.side == side)?;
        Some(machine.answer(caller, request, word))
    }

    /// One tick of a locked machine, with all that follows at once. Returns whether it opens.
    pub(crate) fn collect(&mut self, node: usize) -> bool {
        let machine = self.machines.get_mut(&node).expect("it is there");
        let State::Locked(mut collector) = std::mem::replace(&mut machine.state, State::Off) else {
            unreachable!("only a locked machine collects")
        };
        let opened = self.run(node, &mut collector).or_else(|| self.join_node(node));
        let machine = self.machines.get_mut(&node).expect("it is there");
        let is_open = opened.is_some();
        machine.state = match opened {
            Some(key) => State::Open { key, verified: None, next: None },
            None => State::Locked(collector),
        };
        is_open
    }

    fn run(&mut self, node: usize, collector: &mut Collector) -> Option<ClusterUnlockKey> {
        // What others have shown it meanwhile.
        let known = collector.members().map(|list| list.list().epoch());
        let shown = self.machines[&node].esp.list.clone().filter(|list| Some(list.list().epoch()) > known);
        let mut events: VecDeque<_> = shown.map(Event::MembersChanged).into_iter().chain([Event::Tick]).collect();
        while let Some(event) = events.pop_front() {
            for action in collector.handle(event) {
                match action {
                    Action::Persist(list) => self.machines.get_mut(&node).expect("it is there").persist(&list),
                    Action::Ask { peer, request } => {
                        let reply = self.ask(node, number(&peer), &request);
                        events.push_back(reply.map_or(Event::NoAnswer(peer), |reply| Event::Reply(peer, reply)));
                    }
                    Action::Open { key, proof: _ } => {
                        if self.machines[&node].slots.contains(&key.check_value()) {
                            return Some(key);
                        }
                        events.push_back(Event::DidNotOpen);
                    }
                    Action::Report(_) | Action::Alarm(_) => {}
                }
            }
        }
        None
    }

    /// What a worker does, and a member that has nothing else: the running cluster has its key.
    fn join_node(&self, node: usize) -> Option<ClusterUnlockKey> {
        let machine = &self.machines[&node];
        let named = machine.esp.list.as_ref().is_some_and(|list| list.list().member(&id(node)).is_some());
        if (named && machine.esp.file.is_some()) || !self.runs(machine.side) || self.kept.deleted.contains(&node) {
            return None;
        }
        self.kept.keys.get(&node).filter(|key| machine.slots.contains(&key.check_value())).cloned()
    }

    /// Whether enough others open the shares of an open machine's key.
    fn drill(&mut self, node: usize, key: &ClusterUnlockKey) -> Option<Epoch> {
        let mut drill = match Drill::new(self.machines[&node].settings(), key.clone()) {
            Ok(drill) => drill,
            Err(NoDrill::Local { epoch }) => return Some(epoch),
            Err(NoDrill::NoFile | NoDrill::OtherKey) => return None,
        };
        for _ in 0..4 {
            let mut events = VecDeque::from([Event::Tick]);
            while let Some(event) = events.pop_front() {
                for action in drill.handle(event) {
                    match action {
                        DrillAction::Persist(list) => self.machines.get_mut(&node).expect("there").persist(&list),
                        DrillAction::Ask { peer, request } => {
                            let reply = self.ask(node, number(&peer), &request);
                            events.push_back(reply.map_or(Event::NoAnswer(peer), |reply| Event::Reply(peer, reply)));
                        }
                        DrillAction::Verified { epoch } => return Some(epoch),
                        DrillAction::Report(_) | DrillAction::Alarm(_) => {}
                    }
                }
            }
        }
        None
    }

    /// One step of what an open machine has to do for its own key. Returns whether there was one.
    pub(crate) fn work(&mut self, node: usize) -> bool {
        let machine = &self.machines[&node];
        let State::Open { key, verified, next: _ } = &machine.state else { return false };
        let (key, verified, side) = (key.clone(), *verified, machine.side);
        if !self.runs(side) {
            return false;
        }
        if self.kept.deleted.contains(&node) {
            self.machines.get_mut(&node).expect("it is there").state = State::Off;
            return true;
        }
        self.take_orders(node) || self.rotate(node, &key) || self.split_again(node, &key) || {
            let file = self.machines[&node].file();
            file.is_some_and(|file| self.report(node, &key, verified, &file))
        }
    }

    /// The newest list, and the floors.
    fn take_orders(&mut self, node: usize) -> bool {
        let machine = self.machines.get_mut(&node).expect("it is there");
        let mut changed = false;
        for (owner, report) in &self.kept.reports {
            changed |= machine.esp.floors.of(&id(*owner)).is_none_or(|floor| floor < report.epoch);
            machine.esp.floors.raise(id(*owner), report.epoch);
        }
        if machine.list_epoch() < Some(self.kept.list.list().epoch()) {
            machine.persist(&self.kept.list);
            return true;
        }
        let durable = machine.list_epoch().expect("it has one now");
        changed | (self.kept.holds.insert(node, durable) < Some(durable))
    }

    /// Goes on with the replacement of the key, if one has begun.
    fn rotate(&mut self, node: usize, key: &ClusterUnlockKey) -> bool {
        let machine = self.machines.get_mut(&node).expect("it is there");
        let Some(file) = machine.file() else { return false };
        let opened = key.check_value();
        let Some(pending) = &file.pending else {
            // Each running node compares its key with the one that the cluster keeps, and sends it again.
            return self.kept.keys.insert(node, key.clone()).as_ref() != Some(key);
        };
        if let State::Open { next: Some(next), .. } = &machine.state {
            let key = next.clone();
            machine.slots.insert(key.check_value());
            machine.state = State::Open { key, verified: None, next: None };
        } else if opened != pending.check_value {
            // The key that was to come is lost with the memory: it begins again.
            machine.slots.remove(&pending.check_value);
            machine.write_file(&UnlockFile { pending: None, ..file });
        } else if self.kept.keys.get(&node) != Some(key) {
            self.kept.keys.insert(node, key.clone());
        } else if machine.slots.len() > 1 {
            machine.slots.retain(|slot| *slot == opened);
        } else {
            let file = UnlockFile { current: pending.clone(), pending: None, ..file };
            machine.write_file(&file);
        }
        true
    }

    /// Splits the key to the newest list, if that was not done.
    fn split_again(&mut self, node: usize, key: &ClusterUnlockKey) -> bool {
        let list = self.machines[&node].esp.list.clone().expect("it has one now");
        let Some(member) = list.list().member(&id(node)) else { return false };
        let during = Scheme::for_member(list.list(), member.standing).expect("at most nine");
        let voters = |count: usize| Scheme::of(count, self.two_confirmed).expect("at most nine");
        let has_change = list.list().members().iter().any(|member| member.standing != Standing::Stays);
        let scheme = if self.broken == Broken::FewerShares && has_change {
            voters(list.list().voters_after().count())
        } else {
            during
        };
        let machine = self.machines.get_mut(&node).expect("it is there");
        let before = machine.file();
        let is_split = |file: &UnlockFile| {
            let is_late = self.broken == Broken::SplitAfterwards && !has_change;
            file.current.epoch == list.list().epoch() || is_late
        };
        if before.as_ref().is_some_and(is_split) {
            return false;
        }
        if scheme == Scheme::Local && !machine.esp.local.contains(key) {
            machine.esp.local = vec![key.clone()];
            return true;
        }
        let current = self.split_to(node, key, &list, scheme);
        // Nothing that was once easier to put together stays in use.
        let rises = before.as_ref().is_some_and(|file| file.current.scheme < scheme);
        let next = rises.then(|| self.new_key());
        let pending = next.as_ref().map(|next| self.split_to(node, next, &list, scheme));
        let (cluster, owner) = (AUTHORITY.certificate().cluster_id(), id(node));
        let file = UnlockFile { cluster, owner, current, pending };
        let machine = self.machines.get_mut(&node).expect("it is there");
        machine.write_file(&file);
        machine.state = State::Open { key: key.clone(), verified: None, next };
        true
    }

    fn split_to(
        &mut self,
        node: usize,
        key: &ClusterUnlockKey,
        list: &SignedMemberList,
        scheme: Scheme,
    ) -> polis_unlock::Split {
        let own = Scheme::for_member(list.list(), list.list().member(&id(node)).expect("named").standing);
        if own == Ok(scheme) {
            return split(&id(node), key, list.list(), &Cheap, &mut self.random).expect("the list allows it");
        }
        // A broken rule: the same holders, as if no change was under way.
        let members = list.list().members().iter().cloned();
        let members = members.map(|member| MemberEntry { standing: Standing::Stays, ..member }).collect();
        let cluster = AUTHORITY.certificate().cluster_id();
        let plain = MemberList::new(cluster, list.list().epoch(), members).with_two_confirmed(self.two_confirmed);
        split(&id(node), key, &plain, &Cheap, &mut self.random).expect("the list allows it")
    }

    /// Drills and reports the split, and drops the copy that it has replaced.
    fn report(&mut self, node: usize, key: &ClusterUnlockKey, verified: Option<Epoch>, file: &UnlockFile) -> bool {
        let epoch = file.current.epoch;
        if verified != Some(epoch) {
            let drilled = self.drill(node, key);
            if let State::Open { verified, .. } = &mut self.machines.get_mut(&node).expect("it is there").state {
                *verified = drilled;
            }
            return drilled.is_some();
        }
        let machine = self.machines.get_mut(&node).expect("it is there");
        let needed = file.current.scheme.shares_needed();
        if needed > 0 && !machine.esp.local.is_empty() {
            machine.esp.local.clear();
            return true;
        }
        let holders = file.current.holders.iter().map(|held| number(&held.holder)).collect();
        let report = Report { epoch, needed, holders };
        self.excused.remove(&node);
        self.kept.reports.insert(node, report).is_none_or(|before| before.epoch != epoch)
    }

    /// Lets the leader and all machines that run do what there is to do, until there is nothing.
    pub(crate) fn settle(&mut self) {
        for _ in 0..400 {
            let nodes: Vec<usize> = self.machines.keys().copied().collect();
            let led = self.lead();
            let worked = nodes.iter().filter(|node| self.work(**node)).count();
            if !led && worked == 0 {
                let is_there = |node: &usize| self.is_open_on(*node, false) && !self.excused.contains(node);
                self.rests = self.kept.change.is_none() && self.kept.voters.iter().all(is_there);
                return;
            }
        }
        panic!("it never comes to rest");
    }
}
