//! Ten thousand histories over the real functions.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use polis_unlock::VOTERS_LIMIT;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::nodes::NODES;
use crate::replay::REPLAY;
use crate::rules::Broken;
use crate::world::{Change, World};

/// Histories of one run.
const HISTORIES: u32 = 10_000;
/// Time that continuous integration has for them, by the processors that it has. What else they do meanwhile does not count.
const TIME: Duration = Duration::from_secs(120);
/// The unit of times in `/proc`: the same on every machine that there is.
const TICK: Duration = Duration::from_millis(10);
/// Histories in which the break of a rule has to be found, which ends the search.
const HISTORIES_TO_FIND: u32 = 20_000;
/// Histories that are tried to make one that failed smaller.
const SHRINKS: u32 = 400;
/// Parts of a search that run at the same time.
const PARTS: u32 = 4;

/// One thing that happens. Numbers of machines are taken modulo those that there are, so that every list of steps is a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An operator wants another member.
    Add,
    /// An operator wants a member to go.
    Remove(usize),
    /// A machine loses power.
    Crash(usize),
    /// All do.
    CrashAll,
    /// A machine is switched on.
    Start(usize),
    /// Somebody copies an ESP.
    Copy(usize),
    /// Somebody puts back the copy of an ESP, once in a history, while the machine is off.
    PutBack(usize),
    /// The network is cut: the machines of this set are on the other side.
    Cut(u16),
    /// The network is whole again.
    Heal,
    /// The leader does one thing.
    Lead,
    /// An open machine does one thing for its key.
    Work(usize),
    /// A locked machine lets some ticks pass.
    Collect(usize),
    /// Time passes without anything new: all are switched on, in contact, and do what there is to do.
    Rest,
}

/// How a history begins, and what happens in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) voters: usize,
    pub(crate) two_confirmed: bool,
    pub(crate) seed: u64,
    /// Picks the machines that are tried at the end.
    pub(crate) choice: u64,
    pub(crate) steps: Vec<Step>,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NODES;
    prop_oneof![
        2 => Just(Step::Add),
        2 => node.clone().prop_map(Step::Remove),
        2 => node.clone().prop_map(Step::Crash),
        1 => Just(Step::CrashAll),
        3 => node.clone().prop_map(Step::Start),
        1 => node.clone().prop_map(Step::Copy),
        1 => node.clone().prop_map(Step::PutBack),
        1 => any::<u16>().prop_map(Step::Cut),
        2 => Just(Step::Heal),
        6 => Just(Step::Lead),
        12 => node.clone().prop_map(Step::Work),
        4 => node.prop_map(Step::Collect),
        2 => Just(Step::Rest),
    ]
}

pub(crate) fn history() -> impl Strategy<Value = History> {
    let start = (1..=VOTERS_LIMIT, any::<bool>(), any::<u64>(), any::<u64>());
    (start, prop::collection::vec(step(), 0..40)).prop_map(|((voters, two_confirmed, seed, choice), steps)| History {
        voters,
        two_confirmed,
        seed,
        choice,
        steps,
    })
}

impl World {
    fn pick(&self, number: usize) -> usize {
        *self.machines.keys().nth(number % self.machines.len()).expect("there is one at least")
    }

    fn apply(&mut self, step: Step) {
        if step != Step::Rest {
            self.rests = false;
        }
        match step {
            Step::Add => {
                if let Some(node) = (0..NODES).find(|node| !self.machines.contains_key(node)) {
                    self.enrol(node);
                    self.kept.queue.push_back(Change { node, adds: true });
                }
            }
            Step::Remove(number) => {
                let node = self.pick(number);
                self.kept.queue.push_back(Change { node, adds: false });
            }
            Step::Crash(number) => self.stop(self.pick(number)),
            Step::CrashAll => {
                self.machines.keys().copied().collect::<Vec<_>>().into_iter().for_each(|node| self.stop(node))
            }
            Step::Start(number) => self.start(self.pick(number)),
            Step::Copy(number) => {
                let node = self.pick(number);
                let machine = self.machines.get_mut(&node).expect("it was picked");
                machine.copies.push(machine.esp.clone());
            }
            Step::PutBack(number) => self.put_back(self.pick(number)),
            Step::Cut(set) => {
                self.machines.values_mut().for_each(|machine| machine.side = set >> machine.node & 1 == 1);
            }
            Step::Heal => self.machines.values_mut().for_each(|machine| machine.side = false),
            Step::Lead => drop(self.lead()),
            Step::Work(number) => drop(self.work(self.pick(number))),
            Step::Collect(number) => self.collect_for_a_while(self.pick(number)),
            Step::Rest => self.rest(),
        }
    }

    /// What there is, on one line.
    fn describe(&self) -> String {
        let machine = |machine: &crate::machine::Machine| {
            let state = match (machine.is_on(), machine.is_open()) {
                (false, _) => "off",
                (true, false) => "locked",
                (true, true) => "open",
            };
            format!("{}:{state}", machine.node)
        };
        let machines: Vec<String> = self.machines.values().map(machine).collect();
        format!("voters {:?}, {:?}, {}", self.kept.voters, self.kept.change, machines.join(" "))
    }

    fn stop(&mut self, node: usize) {
        self.machines.get_mut(&node).expect("it is there").state = crate::machine::State::Off;
    }

    fn start(&mut self, node: usize) {
        let machine = self.machines.get_mut(&node).expect("it is there");
        if !machine.is_on() {
            machine.start();
        }
    }

    fn put_back(&mut self, node: usize) {
        let machine = self.machines.get_mut(&node).expect("it is there");
        if self.put_back.is_none() && !machine.is_on() && !machine.copies.is_empty() {
            machine.esp = machine.copies[0].clone();
            self.put_back = Some(node);
            self.excused.insert(node);
        }
    }

    fn collect_for_a_while(&mut self, node: usize) {
        for _ in 0..10 {
            let machine = &self.machines[&node];
            if !machine.is_on() || machine.is_open() || self.collect(node) {
                return;
            }
        }
    }

    fn rest(&mut self) {
        self.apply(Step::Heal);
        let nodes: Vec<usize> = self.machines.keys().copied().collect();
        for _ in 0..4 {
            nodes.iter().for_each(|node| self.start(*node));
            nodes.iter().for_each(|node| self.collect_for_a_while(*node));
        }
        self.settle();
    }
}

fn run(history: &History, broken: Broken) -> Result<(), String> {
    let mut world = World::new(history.voters, history.two_confirmed, broken, history.seed);
    for step in &history.steps {
        world.apply(*step);
    }
    world.check(history.choice)
}

/// Runs many histories, in parts at the same time, and returns the smallest that breaks an invariant, with what it breaks, and the processor
/// time that all took.
fn search(histories: u32, broken: Broken) -> (Option<(History, String)>, Duration) {
    thread::scope(|scope| {
        let parts: Vec<_> = (0..PARTS)
            .map(|part| scope.spawn(move || (search_part(histories / PARTS, part, broken), busy())))
            .collect();
        let parts: Vec<_> = parts.into_iter().map(|part| part.join().expect("a part does not panic")).collect();
        let took = parts.iter().map(|(_, took)| *took).sum();
        let found = parts.into_iter().filter_map(|(found, _)| found);
        (found.min_by_key(|(history, _)| history.steps.len()), took)
    })
}

/// How long this thread has had a processor (proc(5), fields 14 and 15 of `stat`).
fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("a thread sees itself");
    // The name of the thread, in parentheses, may hold anything; the fields after it are numbered from 3.
    let fields = stat.rsplit_once(')').expect("it has a name").1.split_ascii_whitespace();
    TICK * fields.skip(14 - 3).take(2).map(|ticks| ticks.parse::<u32>().expect("a number")).sum::<u32>()
}

/// Always the same histories in a part, so that a failure is there again in the next run.
fn search_part(histories: u32, part: u32, broken: Broken) -> Option<(History, String)> {
    let config = Config { cases: histories, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    let seed = [part as u8; 32];
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    match runner.run(&history(), |history| run(&history, broken).map_err(TestCaseError::fail)) {
        Ok(()) => None,
        Err(TestError::Fail(reason, history)) => Some((history, reason.message().to_owned())),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn no_history_breaks_an_invariant() {
    let began = Instant::now();
    let (found, busy) = search(HISTORIES, Broken::Nothing);
    if let Some((history, reason)) = found {
        panic!("{reason}\nTo see it again: {REPLAY}='{history}'\n{history:#?}");
    }
    let processors = thread::available_parallelism().map_or(1, usize::from).min(PARTS as usize);
    let took = busy / processors as u32;
    println!(
        "{HISTORIES} histories, of the seeds 0 to {}: {took:.1?} of each of {processors} processors, {:.1?} by the clock",
        PARTS - 1,
        began.elapsed()
    );
    assert!(took < TIME, "{HISTORIES} histories have taken {took:?}");
}

/// The one that the environment asks for, as a failure has printed it, with what is there after each step. Nothing where none is asked
/// for.
#[test]
fn the_history_that_was_asked_for_breaks_no_invariant() {
    let Ok(text) = std::env::var(REPLAY) else {
        println!("no history is asked for ({REPLAY})");
        return;
    };
    let history: History = text.parse().unwrap_or_else(|error| panic!("{REPLAY}: {error}"));
    let mut world = World::new(history.voters, history.two_confirmed, Broken::Nothing, history.seed);
    for (number, step) in history.steps.iter().enumerate() {
        world.apply(*step);
        println!("{number:>3} {step:<14} {}", world.describe());
    }
    assert_eq!(world.check(history.choice), Ok(()), "{history:#?}");
}

fn is_found(broken: Broken, expected: &str) {
    let (history, reason) = search(HISTORIES_TO_FIND, broken).0.expect("a broken rule is found");
    assert!(reason.contains(expected), "{reason} instead of {expected}\n{history:#?}");
    println!("{broken:?}: {reason}, after {REPLAY}='{history}'");
    // The same history does no harm when the rule is kept.
    assert_eq!(run(&history, Broken::Nothing), Ok(()), "{history:#?}");
}

#[test]
fn with_the_list_before_the_call_a_quorum_does_not_open() {
    is_found(Broken::CallBeforeList, "only");
}

/// A history that once failed, as it was printed.
fn replay(voters: usize, two_confirmed: bool, seed: u64, choice: u64, steps: &[Step]) {
    let history = History { voters, two_confirmed, seed, choice, steps: steps.to_vec() };
    assert_eq!(run(&history, Broken::Nothing), Ok(()), "{history:#?}");
}

#[test]
fn histories_that_once_failed() {
    // A member goes, and the two that stay keep copies: the one that goes must not.
    replay(3, false, 1, 7, &[Step::Rest, Step::Remove(0), Step::Rest]);
    // The power failed after the file with the next key was written, and before that key opened anything.
    replay(7, false, 17150065800569189380, 0, &[Step::Add, Step::Rest]);
}
