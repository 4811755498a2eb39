//! Before, during and after every change, every quorum opens; whoever is away, whoever is slow, and wherever the leader dies.
//!
//! The files are sets of bits here, and who opens with whom is counted anew: only the decision is that of the plan.

use super::super::simulation::node;
use super::super::splits::{Split, shares_needed, shares_needed_during};
use super::*;

/// The file of one member: shares needed, and who holds one. `None`: there is none.
type File = Option<(usize, u32)>;

/// One change, with its members as bits: the lowest `count` are those before it, and a joiner is the one above.
#[derive(Clone, Copy, Debug)]
struct Change {
    count: usize,
    operation: Op,
    two_confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Add,
    Remove(usize),
}

impl Change {
    /// All changes of up to nine members.
    fn all() -> impl Iterator<Item = Self> {
        let of = |count: usize| {
            // All members are alike, but the first stays when others are away, and the last is one of those.
            let remove = [0, count - 1].into_iter().filter(move |_| count > 1).map(Op::Remove);
            let add = (count < MAX_MEMBERS).then_some(Op::Add);
            add.into_iter().chain(remove).map(move |operation| (count, operation))
        };
        (1..=MAX_MEMBERS)
            .flat_map(of)
            .flat_map(|(count, operation)| [false, true].map(|two_confirmed| Self { count, operation, two_confirmed }))
    }

    fn before(self) -> u32 {
        (1 << self.count) - 1
    }

    fn after(self) -> u32 {
        match self.operation {
            Op::Add => self.before() | 1 << self.count,
            Op::Remove(index) => self.before() & !(1 << index),
        }
    }

    fn operation(self) -> Operation {
        match self.operation {
            Op::Add => Operation::Add(node(self.count)),
            Op::Remove(index) => Operation::Remove(node(index)),
        }
    }

    /// What a member has before the change.
    fn settled(self, owner: usize, voters: u32) -> File {
        Some((shares_needed(voters.count_ones() as usize, self.two_confirmed), voters & !(1 << owner)))
    }

    /// Voters before and after.
    fn counts(self) -> [usize; 2] {
        [self.before(), self.after()].map(|voters| voters.count_ones() as usize)
    }

    /// The world right before the call, with these files reported, by these for the list of the change, for a leader that has waited for so long.
    fn world(self, files: &[File], done: u32, reachable: u32, unsplit_for: Duration) -> World {
        let reported = |index: usize| {
            let split = files[index].map(|(shares_needed, holders)| Split {
                list: if done >> index & 1 == 1 { Epoch::FIRST.next() } else { Epoch::FIRST },
                shares_needed,
                holders: nodes(holders),
                is_verified: true,
            });
            (node(index), Keeping::Splits(split))
        };
        let joins = self.operation == Op::Add;
        let member =
            |index| MemberFacts { id: index as u64 + 1, node: Some(node(index)), is_learner: index == self.count };
        let members = 0..self.count + usize::from(joins);
        World {
            // One that stays.
            leader: Some(node(usize::from(self.operation == Op::Remove(0)))),
            members: members.clone().map(member).collect(),
            nodes: members.clone().map(|index| (node(index), NodeFacts { is_up: true, has_role: true })).collect(),
            intent: Some(Intent { operation: self.operation() }),
            listed: nodes(self.before() | self.after()),
            epoch: Some(Epoch::FIRST.next()),
            network_timing: true,
            keys: members.map(reported).collect(),
            reachable: nodes(reachable),
            attempt: Attempt { unsplit_for, ..Attempt::default() },
            ..World::default()
        }
    }
}

fn nodes(bits: u32) -> BTreeSet<NodeId> {
    members(bits).map(node).collect()
}

fn members(bits: u32) -> impl Iterator<Item = usize> {
    (0..=MAX_MEMBERS).filter(move |index| bits >> index & 1 == 1)
}

/// Whether the file of a member opens while these are up.
fn opens(file: File, owner: usize, up: u32) -> bool {
    file.is_some_and(|(shares, holders)| (holders & up & !(1 << owner)).count_ones() as usize >= shares)
}

/// Whether the file of a member opens with every quorum of these voters, one after the other.
fn opens_with_every_quorum(file: File, owner: usize, voters: u32) -> bool {
    let needed = voters.count_ones() / 2 + 1;
    let is_quorum = |up: &u32| up & !voters == 0 && up >> owner & 1 == 1 && up.count_ones() == needed;
    (0..=voters).filter(is_quorum).all(|up| opens(file, owner, up))
}

/// Every set of members that have followed the list of the change already, with every set of the same members that are away, as far
/// as the others are a quorum before and after.
fn moments(change: Change) -> impl Iterator<Item = (u32, u32)> {
    let all = change.before() | change.after();
    let has_quorum = |voters: u32, up: u32| (voters & up).count_ones() > voters.count_ones() / 2;
    // Who is away follows: the highest members, so that each number of them is there; sets of the others are all there.
    let aways = (0..=change.count).map(move |from| (change.before() >> from) << from);
    aways
        .filter(move |away| has_quorum(change.before(), !away) && has_quorum(change.after(), !away))
        .flat_map(move |away| (0..=all).filter(move |done| done & !(all & !away) == 0).map(move |done| (done, away)))
}

/// The rules of a change, so that each of them can be broken.
#[derive(Clone, Copy)]
struct Rules {
    /// Shares that a file needs which is made for the list of the change.
    shares: fn(Change) -> usize,
    /// Who holds a share of such a file.
    holders: fn(Change) -> u32,
    /// What the leader makes of the reports before it decides.
    reports: fn(&mut World),
    /// For how long the leader has waited for splits when it has waited for long.
    patience: Duration,
}

impl Rules {
    fn real() -> Self {
        Self {
            shares: |change| {
                let [before, after] = change.counts();
                shares_needed_during(before, after, change.two_confirmed)
            },
            holders: |change| change.before() | change.after(),
            reports: |_| {},
            patience: Budgets::default().split,
        }
    }

    /// What a member makes of the list of the change.
    fn during(self, change: Change, owner: usize) -> File {
        Some(((self.shares)(change), (self.holders)(change) & !(1 << owner)))
    }

    fn plan(self, change: Change, files: &[File], done: u32, away: u32, unsplit_for: Duration) -> Step {
        let mut world = change.world(files, done, !away, unsplit_for);
        (self.reports)(&mut world);
        plan(&world)
    }

    /// Goes through all moments of all changes: how many calls were made and how often they waited, or the first quorum that would
    /// not open.
    fn check(self) -> Result<[u64; 2], String> {
        let mut counts = [0; 2];
        for change in Change::all() {
            for (done, away) in moments(change) {
                self.check_moment(change, done, away, &mut counts)
                    .map_err(|what| format!("{what}: {change:?}, done {done:b}, away {away:b}"))?;
            }
            // After the call, some have followed the list of its end and others have not.
            for owner in members(change.after()) {
                for file in [change.settled(owner, change.after()), self.during(change, owner)] {
                    holds(opens_with_every_quorum(file, owner, change.after()), "after the change")?;
                }
            }
        }
        Ok(counts)
    }

    fn check_moment(self, change: Change, done: u32, away: u32, counts: &mut [u64; 2]) -> Result<(), String> {
        let (before, after) = (change.before(), change.after());
        let file = |owner: usize| match (done >> owner & 1 == 1, before >> owner & 1 == 1) {
            (true, _) => self.during(change, owner),
            (false, true) => change.settled(owner, before),
            (false, false) => None,
        };
        let files: Vec<File> = (0..=MAX_MEMBERS).map(file).collect();
        let open_in = |voters: u32| move |owner: &usize| opens_with_every_quorum(file(*owner), *owner, voters);
        holds(members(before).all(|owner| open_in(before)(&owner)), "before the call")?;
        let is_call = |step: &Step| matches!(step, Step::Promote(_) | Step::Remove(_));

        // A leader that has just begun, at whatever moment.
        let step = self.plan(change, &files, done, away, Duration::ZERO);
        if is_call(&step) {
            counts[0] += 1;
            holds(members(after & !away).all(|owner| open_in(after)(&owner)), "right after the call")?;
        } else if let Step::Wait(Waiting::Splitting { nodes: waiting, .. }) = &step {
            counts[1] += 1;
            holds(waiting.is_disjoint(&nodes(before & !after)), "it waits for the one that goes")?;
            holds(waiting.is_disjoint(&nodes(away & before)), "it waits for one that is away")?;
        } else {
            return Err(format!("{step:?}"));
        }
        // One that has waited for long.
        let step = self.plan(change, &files, done, away, self.patience);
        if is_call(&step) {
            let opening = members(after).filter(open_in(after)).count();
            holds(opening > after.count_ones() as usize / 2, "too few have split")?;
            let joiner = change.count;
            holds(!matches!(step, Step::Promote(_)) || open_in(after)(&joiner), "the joiner has not split")?;
        } else {
            let ends = matches!(step, Step::GiveUp { reason: GaveUp::NotSplit, .. } | Step::Withdraw(_));
            holds(ends, "it waits for ever")?;
        }
        // Once those that are there have split, it goes on at once.
        let all_done = |owner: usize| {
            if away >> owner & 1 == 1 { file(owner) } else { self.during(change, owner) }
        };
        let all_done: Vec<File> = (0..=MAX_MEMBERS).map(all_done).collect();
        holds(is_call(&self.plan(change, &all_done, !away, away, Duration::ZERO)), "it waits for nothing")
    }
}

fn holds(is_so: bool, otherwise: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.to_owned()) }
}

#[test]
fn every_quorum_opens_before_during_and_after_each_change() {
    let [calls, waits] = Rules::real().check().unwrap();
    println!("{calls} calls, {waits} waits");
    assert!(calls > 100 && waits > 10_000, "{calls} calls, {waits} waits");
}

#[test]
fn each_rule_is_needed() {
    let real = Rules::real();
    let broken: [(&str, Rules); 9] = [
        ("as many shares as before", Rules { shares: |it| shares_needed(it.counts()[0], it.two_confirmed), ..real }),
        ("as many shares as after", Rules { shares: |it| shares_needed(it.counts()[1], it.two_confirmed), ..real }),
        ("holders before", Rules { holders: Change::before, ..real }),
        ("holders after", Rules { holders: Change::after, ..real }),
        ("nobody is waited for", Rules { reports: |world| world.keys.clear(), ..real }),
        ("the joiner alone is waited for", Rules { reports: keep_the_joiner, ..real }),
        ("all but the joiner are waited for", Rules { reports: forget_the_joiner, ..real }),
        ("one that is away is waited for", Rules { reports: |world| world.reachable = nodes(!0), ..real }),
        ("there is no end of patience", Rules { patience: Duration::ZERO, ..real }),
    ];
    for (name, rules) in broken {
        match rules.check() {
            Ok(counts) => panic!("without this rule nothing is wrong: {name}, {counts:?}"),
            Err(what) => println!("{name}: {what}"),
        }
    }
}

fn joiner(world: &World) -> Option<NodeId> {
    match world.intent?.operation {
        Operation::Add(node) => Some(node),
        Operation::Remove(_) => None,
    }
}

fn keep_the_joiner(world: &mut World) {
    let joiner = joiner(world);
    world.keys.retain(|node, _| Some(*node) == joiner);
}

fn forget_the_joiner(world: &mut World) {
    let joiner = joiner(world);
    world.keys.retain(|node, _| Some(*node) != joiner);
}

/// A thief with fewer machines than a quorum of the smaller side opens nothing at any moment of a change.
#[test]
fn fewer_than_a_quorum_open_nothing_at_any_moment() {
    for change in Change::all() {
        let (before, after) = (change.before(), change.after());
        let least = before.count_ones().min(after.count_ones());
        // Copies open alone, as long as there are copies.
        let rules = Rules::real();
        if (rules.shares)(change) == 0 {
            continue;
        }
        for owner in members(before | after) {
            for file in [change.settled(owner, before), rules.during(change, owner), change.settled(owner, after)] {
                for stolen in (0..=before | after).filter(|set| set.count_ones() <= least / 2) {
                    let opened = stolen >> owner & 1 == 1 && opens(file, owner, stolen);
                    assert!(!opened, "{change:?}: {owner} with {stolen:b}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_split_is_not_waited_for() {
    for change in Change::all() {
        let mut world = change.world(&[None; MAX_MEMBERS + 1], 0, change.before(), Duration::ZERO);
        let call = match change.operation() {
            Operation::Add(node) => Step::Promote(node),
            Operation::Remove(node) => Step::Remove(node),
        };
        world.keys = world.keys.into_keys().map(|node| (node, Keeping::CannotSplit)).collect();
        assert_eq!(plan(&world), call, "an earlier version: {change:?}");
        world.keys.clear();
        assert_eq!(plan(&world), call, "nothing is encrypted: {change:?}");
    }
}
