//! Every sequence: a node whose demand changes at any moment, that loses its power at any moment, whose cluster and peers answer or do
//! not, and that is told to replace its key at any moment. All states that can be reached are visited.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

/// A key, by a small number.
type Key = u8;

/// What is asked, as the model numbers it; each is another member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Unsaid,
    Copy,
    /// So many shares, held by one of two sets of members.
    Shares {
        needed: u8,
        holders: u8,
    },
    Guest,
}

const ASKED: [Asked; 6] = [
    Asked::Unsaid,
    Asked::Copy,
    Asked::Shares { needed: 1, holders: 0 },
    Asked::Shares { needed: 1, holders: 1 },
    Asked::Shares { needed: 2, holders: 1 },
    Asked::Guest,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Split {
    key: Key,
    needed: u8,
    holders: u8,
}

/// What is durable, and what the cluster keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Durable {
    copy: Option<(Key, Option<Key>)>,
    file: Option<(Split, Option<Split>)>,
    /// Keys that open the data.
    slots: BTreeSet<Key>,
    kept: Option<Key>,
}

/// What a life of the node knows beside that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Memory {
    opened: Key,
    next: Option<Key>,
    verified: BTreeSet<Split>,
    may_have_been_member: bool,
    is_rekey_asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    durable: Durable,
    memory: Memory,
    asked: Asked,
    in_contact: bool,
    /// Whether the running cluster is all that the node has, as it is no member with a split or a copy yet.
    leans_on_cluster: bool,
    /// Whether the cluster was brought back from an older time: what it keeps since may be any key that the node has ever had.
    was_brought_back: bool,
    /// Fewest shares with which each key could be had, as long as it has been one of a member; 0 for a copy.
    weakest: BTreeMap<Key, u8>,
}

impl World {
    fn founder() -> Self {
        Self {
            durable: Durable { copy: Some((1, None)), file: None, slots: [1].into(), kept: Some(1) },
            memory: Memory::of(1),
            asked: Asked::Copy,
            in_contact: true,
            leans_on_cluster: false,
            was_brought_back: false,
            weakest: [(1, 0)].into(),
        }
    }

    /// One that has just come in.
    fn newcomer() -> Self {
        let memory = Memory { may_have_been_member: false, ..Memory::of(1) };
        Self { asked: Asked::Guest, weakest: BTreeMap::new(), memory, ..Self::founder() }
    }

    fn view(&self) -> View {
        let key = |key: Key| KeyCheckValue::new([key; 32]);
        let piece = |split: Split| Piece {
            key: key(split.key),
            needed: split.needed,
            fits: self.asked == Asked::Shares { needed: split.needed, holders: split.holders },
            is_verified: self.memory.verified.contains(&split),
        };
        let Durable { copy, file, slots, kept } = &self.durable;
        View {
            demand: match self.asked {
                Asked::Unsaid => Demand::Unsaid,
                Asked::Copy => Demand::Copy,
                Asked::Shares { needed, .. } => Demand::Shares { needed },
                Asked::Guest => Demand::Guest,
            },
            opened: key(self.memory.opened),
            next: self.memory.next.map(key),
            copy: copy.map(|(current, pending)| Copied { current: key(current), pending: pending.map(key) }),
            file: file.map(|(current, pending)| Filed { current: piece(current), pending: pending.map(piece) }),
            kept: self.in_contact.then(|| kept.map(key)),
            keys: slots.len(),
            is_rekey_asked: self.memory.is_rekey_asked,
            may_have_been_member: self.memory.may_have_been_member,
        }
    }

    fn split(&self, key: Key) -> Split {
        let Asked::Shares { needed, holders } = self.asked else { panic!("nothing is to be split: {self:?}") };
        Split { key, needed, holders }
    }

    /// A number that no key has.
    fn fresh(&self) -> Key {
        let Durable { copy, file, slots, kept } = &self.durable;
        let copies = copy.iter().flat_map(|(current, pending)| [Some(*current), *pending]);
        let splits = file.iter().flat_map(|(current, pending)| [Some(current.key), pending.map(|split| split.key)]);
        let others = [Some(self.memory.opened), self.memory.next, *kept];
        let used: BTreeSet<Key> = copies.chain(splits).chain(others).flatten().chain(slots.iter().copied()).collect();
        (1..).find(|key| !used.contains(key)).unwrap()
    }

    fn weaken(&mut self, key: Key, shares: u8) {
        let weakest = self.weakest.entry(key).or_insert(shares);
        *weakest = shares.min(*weakest);
    }

    /// Carries out a step, and checks what must hold when something is taken away.
    fn carry_out(&mut self, step: Step) {
        let opened = self.memory.opened;
        match step {
            Step::Copy => {
                self.durable.copy = Some((opened, None));
                self.weaken(opened, 0);
            }
            Step::DropCopy => {
                let replaced = self.view().piece(KeyCheckValue::new([opened; 32]));
                match self.asked {
                    // The local copy goes only after the drill of a split that is as the newest list asks, and with the cluster's word.
                    Asked::Shares { .. } => {
                        assert!(replaced.is_some_and(|piece| piece.fits && piece.is_verified), "{self:?}");
                    }
                    Asked::Guest => {}
                    Asked::Unsaid | Asked::Copy => panic!("a copy that is needed goes: {self:?}"),
                }
                assert!(self.in_contact && self.durable.kept == Some(opened), "{self:?}");
                self.durable.copy = None;
            }
            Step::Begin { in_journal } => {
                let next = self.fresh();
                if in_journal {
                    assert_eq!(self.durable.copy, Some((opened, None)), "{self:?}");
                    self.durable.copy = Some((opened, Some(next)));
                    self.weaken(next, 0);
                }
                self.memory.next = Some(next);
                self.memory.is_rekey_asked = false;
            }
            Step::Split => {
                let splits = (self.split(opened), self.memory.next.map(|next| self.split(next)));
                for split in [Some(splits.0), splits.1].into_iter().flatten() {
                    self.weaken(split.key, split.needed);
                }
                self.durable.file = Some(splits);
            }
            Step::AddKey => {
                let next = self.memory.next.take().unwrap();
                self.durable.slots.insert(next);
                self.memory.opened = next;
            }
            Step::Tell => self.durable.kept = Some(opened),
            Step::RemoveOthers => {
                assert!(self.in_contact && self.durable.kept == Some(opened), "{self:?}");
                self.durable.slots = [opened].into();
            }
            Step::Forget => {
                assert!(self.in_contact && self.durable.kept == Some(opened), "{self:?}");
                self.durable.file = None;
                self.memory.is_rekey_asked |= self.memory.next.take().is_some();
            }
            Step::Wait(_) | Step::Settled => panic!("there is nothing to be done: {self:?}"),
        }
    }

    /// What follows from what has just happened.
    fn follow(&mut self) {
        match self.asked {
            Asked::Copy | Asked::Shares { .. } => self.memory.may_have_been_member = true,
            Asked::Unsaid | Asked::Guest => {}
        }
        let own = self.own_keys();
        if self.asked == Asked::Guest && own.is_empty() {
            // What was is over: what somebody could have had of the key while this was a member opens nothing any more.
            let is_replaced = !self.weakest.contains_key(&self.memory.opened) || !self.memory.may_have_been_member;
            assert!(is_replaced || self.was_brought_back, "its key was never replaced: {self:?}");
            self.weakest.clear();
            self.was_brought_back = false;
        }
        self.leans_on_cluster = own.is_empty() && (self.leans_on_cluster || self.asked == Asked::Guest);
        let Durable { copy, file, slots, kept } = &self.durable;
        let known: BTreeSet<Key> = [
            copy.iter().flat_map(|(current, pending)| [Some(*current), *pending]).flatten().collect::<Vec<_>>(),
            file.iter().flat_map(|(one, two)| [Some(one.key), two.map(|split| split.key)]).flatten().collect(),
            slots.iter().copied().collect(),
            [self.memory.next, *kept].into_iter().flatten().collect(),
        ]
        .concat()
        .into_iter()
        .collect();
        self.weakest.retain(|key, _| known.contains(key));
        let file: BTreeSet<Split> = file.iter().flat_map(|(one, two)| [Some(*one), *two]).flatten().collect();
        self.memory.verified.retain(|split| file.contains(split));
    }

    /// Keys that open the data, and that the node has without a running cluster.
    fn own_keys(&self) -> BTreeSet<Key> {
        let Durable { copy, file, slots, .. } = &self.durable;
        let copies = copy.iter().flat_map(|(current, pending)| [Some(*current), *pending]);
        let splits = file.iter().flat_map(|(one, two)| [Some(one.key), two.map(|split| split.key)]);
        copies.chain(splits).flatten().filter(|key| slots.contains(key)).collect()
    }

    /// The power goes, and comes back: every way in which the node may then open its data.
    fn power_cut(&self) -> Vec<Self> {
        let Durable { copy, slots, kept, .. } = &self.durable;
        let copies = copy.iter().flat_map(|(current, pending)| [*pending, Some(*current)]).flatten();
        let opening: BTreeSet<Key> = match copies.into_iter().find(|key| slots.contains(key)) {
            Some(first) => [first].into(),
            None => self.own_keys().into_iter().chain(kept.filter(|key| slots.contains(key))).collect(),
        };
        let begin = |opened: Key| {
            let next = copy.and_then(|(current, pending)| pending.filter(|_| current == opened));
            Self { memory: Memory { next, ..Memory::of(opened) }, ..self.clone() }
        };
        opening.into_iter().map(begin).collect()
    }

    /// What the node does next, with or without contact, and what its peers do when it waits for them.
    fn steps(&self) -> Vec<Self> {
        let mut after = Vec::new();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            after.push(next);
        };
        let step = plan(&self.view());
        match step {
            Step::Wait(Waiting::Drill(key)) => push(&|next| {
                let (one, two) = next.durable.file.unwrap();
                let shown = [Some(one), two].into_iter().flatten();
                next.memory.verified.extend(shown.filter(|split| KeyCheckValue::new([split.key; 32]) == key));
            }),
            Step::AddKey => {
                push(&|next| next.carry_out(step));
                // There are two slots, and the one that is not needed is taken.
                push(&|next| {
                    next.durable.slots.retain(|key| *key == self.memory.opened);
                    next.carry_out(step);
                });
            }
            Step::Wait(Waiting::Cluster | Waiting::List) | Step::Settled => {}
            Step::Copy
            | Step::DropCopy
            | Step::Begin { .. }
            | Step::Split
            | Step::Tell
            | Step::RemoveOthers
            | Step::Forget => push(&|next| next.carry_out(step)),
        }
        after
    }

    /// What others do to it, at any moment.
    fn happenings(&self) -> Vec<Self> {
        let mut after = self.power_cut();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            after.push(next);
        };
        for asked in ASKED {
            push(&|next| next.asked = asked);
        }
        push(&|next| next.in_contact = !next.in_contact);
        push(&|next| next.memory.is_rekey_asked = true);
        // The cluster is brought back from a time at which it kept another key of the node, or none.
        for kept in [None, Some(self.fresh())].into_iter().chain(self.durable.slots.iter().map(|key| Some(*key))) {
            push(&|next| {
                next.durable.kept = kept;
                next.was_brought_back = true;
            });
        }
        after.retain(|next| next.is_possible());
        after
    }

    /// A cluster that is brought back from an older time takes nothing from a node that leans on it alone.
    fn is_possible(&self) -> bool {
        !self.leans_on_cluster || self.durable.kept.is_some_and(|kept| self.durable.slots.contains(&kept))
    }

    /// What holds always.
    fn check(&self) {
        assert!(self.durable.slots.contains(&self.memory.opened), "{self:?}");
        let has_own = !self.own_keys().is_empty();
        let cluster_opens = self.durable.kept.is_some_and(|key| self.durable.slots.contains(&key));
        assert!(has_own || (self.leans_on_cluster && cluster_opens), "nothing opens the data: {self:?}");
        assert!(!self.power_cut().is_empty(), "{self:?}");
    }

    /// Once nothing happens any more, and everybody answers, everything comes into order.
    fn heal(mut self) {
        let origin = self.clone();
        self.in_contact = true;
        for _ in 0..40 {
            match plan(&self.view()) {
                Step::Wait(Waiting::Drill(_)) => {
                    let (one, two) = self.durable.file.unwrap();
                    self.memory.verified.extend([Some(one), two].into_iter().flatten());
                }
                Step::Settled => return self.check_settled(&origin),
                Step::Wait(Waiting::List) if self.asked == Asked::Unsaid => return,
                Step::Wait(Waiting::List | Waiting::Cluster) => panic!("it waits: {self:?} from {origin:?}"),
                step @ (Step::Copy
                | Step::DropCopy
                | Step::Begin { .. }
                | Step::Split
                | Step::AddKey
                | Step::Tell
                | Step::RemoveOthers
                | Step::Forget) => {
                    self.carry_out(step);
                    self.follow();
                    self.check();
                }
            }
        }
        panic!("it never comes to an end: {origin:?}");
    }

    fn check_settled(&self, origin: &Self) {
        let (opened, durable) = (self.memory.opened, &self.durable);
        let told = || format!("{self:?} from {origin:?}");
        assert!(durable.kept == Some(opened) && self.memory.next.is_none(), "{}", told());
        match self.asked {
            Asked::Unsaid => return,
            Asked::Copy => assert_eq!((durable.copy, durable.file), (Some((opened, None)), None), "{}", told()),
            Asked::Shares { needed, .. } => {
                assert_eq!((durable.copy, durable.file), (None, Some((self.split(opened), None))), "{}", told());
                let weakest = self.weakest.get(&opened);
                assert!(
                    weakest.is_none_or(|weakest| *weakest >= needed),
                    "it could once be had with fewer shares: {}",
                    told()
                );
            }
            Asked::Guest => assert_eq!((durable.copy, durable.file), (None, None), "{}", told()),
        }
        assert_eq!(durable.slots, [opened].into(), "{}", told());
    }

    /// The same world with keys numbered in the order in which they are found, so that there are finitely many.
    fn renumbered(&self) -> Self {
        let mut numbers: BTreeMap<Key, Key> = BTreeMap::new();
        let mut number = |key: Key| {
            let next = numbers.len() as Key + 1;
            *numbers.entry(key).or_insert(next)
        };
        let Memory { opened, next, verified, may_have_been_member, is_rekey_asked } = &self.memory;
        let (opened, next) = (number(*opened), next.map(&mut number));
        let copy = self.durable.copy.map(|(current, pending)| (number(current), pending.map(&mut number)));
        let mut renumber = |split: Split| Split { key: number(split.key), ..split };
        let file = self.durable.file.map(|(current, pending)| (renumber(current), pending.map(&mut renumber)));
        let verified = verified.iter().map(|split| renumber(*split)).collect();
        let kept = self.durable.kept.map(&mut number);
        let slots = self.durable.slots.iter().map(|key| number(*key)).collect();
        let weakest = self.weakest.iter().map(|(key, shares)| (number(*key), *shares)).collect();
        Self {
            durable: Durable { copy, file, slots, kept },
            memory: Memory {
                opened,
                next,
                verified,
                may_have_been_member: *may_have_been_member,
                is_rekey_asked: *is_rekey_asked,
            },
            weakest,
            ..self.clone()
        }
    }
}

impl Memory {
    /// After a start.
    const fn of(opened: Key) -> Self {
        Self { opened, next: None, verified: BTreeSet::new(), may_have_been_member: true, is_rekey_asked: false }
    }
}

/// Happenings of which every sequence is tried, at every moment of what the node does between them.
const HAPPENINGS: u32 = 3;

#[test]
fn whatever_happens_some_key_opens_and_everything_comes_into_order() {
    let mut queue: VecDeque<(World, u32)> = VecDeque::new();
    let mut seen: BTreeMap<World, u32> = BTreeMap::new();
    let mut reach = |queue: &mut VecDeque<(World, u32)>, mut world: World, left: u32| {
        world.follow();
        let world = world.renumbered();
        if seen.get(&world).is_none_or(|earlier| *earlier < left) {
            let is_new = seen.insert(world.clone(), left).is_none();
            if is_new {
                world.check();
                world.clone().heal();
            }
            queue.push_back((world, left));
        }
        seen.len()
    };
    for world in [World::founder(), World::newcomer()] {
        reach(&mut queue, world, HAPPENINGS);
    }
    let mut count = 0;
    while let Some((world, left)) = queue.pop_front() {
        for next in world.steps() {
            count = reach(&mut queue, next, left);
        }
        if left > 0 {
            for next in world.happenings() {
                count = reach(&mut queue, next, left - 1);
            }
        }
    }
    println!("{count} states of a node and its keys");
    assert!(count > 1_000, "the model has lost most of its states: {count}");
}

/// Long sequences, by chance.
#[test]
fn whatever_happens_for_long_everything_comes_into_order() {
    for seed in 0..400 {
        let mut random = Xorshift(seed + 1);
        let mut world = if seed % 2 == 0 { World::founder() } else { World::newcomer() };
        for _ in 0..150 {
            let is_step = !random.next().is_multiple_of(4);
            let mut after = if is_step { world.steps() } else { world.happenings() };
            if after.is_empty() {
                continue;
            }
            let chosen = random.next() as usize % after.len();
            world = after.swap_remove(chosen);
            world.follow();
            world = world.renumbered();
            world.check();
            world.clone().heal();
        }
    }
}

/// Numbers that are random enough, and the same in each run.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) >> 16
    }
}
