//! What the contexts, the supervisor's handles and its loop share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use polis_condition::Conditions;
use polis_logtree::LogTree;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::core::{Life, Observed, Outcome, Tree};
use crate::report::NodeReport;
use crate::runnable::SharedRunnable;

/// How far a shutdown has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It goes on, or was not asked for.
    #[default]
    Running,
    /// Nothing more can be done about these, which still run.
    GivenUp(Vec<polis_logtree::DistinguishedName>),
    /// Nothing runs any more.
    Stopped,
}

pub(crate) struct Shared {
    pub(crate) handle: Handle,
    pub(crate) log_tree: LogTree,
    pub(crate) conditions: Conditions,
    pub(crate) wake: Notify,
    pub(crate) progress: watch::Sender<Progress>,
    /// Counts the rounds of the loop in which something happened, for those who wait for a state of the tree.
    pub(crate) rounds: watch::Sender<u64>,
    tree: Mutex<Tree<SharedRunnable>>,
    /// The loop was woken and has not looked yet.
    woken: AtomicBool,
    started: Instant,
    started_wall: SystemTime,
}

impl Shared {
    pub(crate) fn new(handle: Handle, log_tree: LogTree, conditions: Conditions, tree: Tree<SharedRunnable>) -> Self {
        Self {
            handle,
            log_tree,
            conditions,
            wake: Notify::new(),
            progress: watch::Sender::default(),
            rounds: watch::Sender::default(),
            tree: Mutex::new(tree),
            woken: AtomicBool::new(false),
            started: Instant::now(),
            started_wall: SystemTime::now(),
        }
    }

    /// The tree, for the loop, which needs no waking.
    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree<SharedRunnable>> {
        // The tree's own code does not panic; should it, its state is still worth more than none.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the tree something, and wakes the loop to carry out what follows.
    pub(crate) fn tell<T>(&self, tell: impl FnOnce(&mut Tree<SharedRunnable>, Duration) -> T) -> T {
        let result = tell(&mut self.tree(), self.now());
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
            self.free_the_loop();
        }
        result
    }

    pub(crate) fn returned(&self, life: Life, outcome: Outcome) {
        self.tell(|tree, now| tree.returned(life, outcome, now));
    }

    pub(crate) fn ended(&self, life: Life) {
        self.tell(|tree, now| tree.ended(life, now));
    }

    /// The loop looks now: what is told from here on wakes it again.
    pub(crate) fn looks(&self) {
        self.woken.store(false, Ordering::Release);
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// When a time since the start is, for the runtime's timers.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.started + at
    }

    pub(crate) fn dump(&self) -> Vec<NodeReport> {
        let observed = self.tree().observe(self.now());
        observed.into_iter().map(|node| self.report(node)).collect()
    }

    /// A worker of the runtime keeps the task that was woken last in a slot from which the other workers cannot take
    /// it. If that was our loop, and the runnable that woke it then spins without ever awaiting, the loop would be
    /// stuck with it, and so every other runnable. An empty task takes that slot, and the loop moves to the queue
    /// that everybody takes from.
    #[expect(clippy::disallowed_methods, reason = "the task is empty")]
    fn free_the_loop(&self) {
        if self.handle.runtime_flavor() != RuntimeFlavor::CurrentThread {
            self.handle.spawn(std::future::ready(()));
        }
    }

    fn report(&self, node: Observed) -> NodeReport {
        NodeReport {
            distinguished_name: node.distinguished_name,
            state: node.state,
            since: self.started_wall + node.since,
            restarts: node.restarts,
            recent_restarts: node.recent_restarts,
            failures_in_a_row: node.failures_in_a_row,
            last_error: node.last_error,
            starts_in: node.starts_in,
            running: node.running,
            cancelled: node.cancelled,
            overdue: node.overdue,
        }
    }
}
