//! What a supervisor tells about its tree: states, transitions, reports.

use std::fmt;
use std::time::{Duration, SystemTime};

use polis_logtree::DistinguishedName;

/// The state of a runnable (metropolis.md A.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Started, or about to be; has not signalled anything. Only now may it start children.
    New,
    /// It has signalled that it is up. It keeps this state after it signalled Done until it returns.
    Healthy,
    /// It returned an error, returned without having signalled Done, or panicked. It will be started again.
    Dead,
    /// It signalled Done and returned without an error. Its children go on.
    Done,
    /// It returned because its context was cancelled, or asked for its next life ([`BeginAnew`](crate::BeginAnew)).
    Canceled,
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::New => "new",
            Self::Healthy => "healthy",
            Self::Dead => "dead",
            Self::Done => "done",
            Self::Canceled => "canceled",
        })
    }
}

/// A runnable went from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Whose state it is.
    pub distinguished_name: DistinguishedName,
    /// The state before; `None` when it was started for the first time under its parent's present life.
    pub from: Option<State>,
    /// The state now. From `New` to `New` is not possible; a restart goes from an ended state to `New`.
    pub to: State,
}

/// Hears of every transition.
///
/// Called once for each, in the order in which they happened, from the supervisor's own task and under no lock. It
/// must be quick, because the supervisor waits for it; a panic in it is logged and changes nothing.
pub trait Metrics: Send + Sync + 'static {
    /// A runnable went from one state to another.
    fn transition(&self, transition: &Transition);
}

/// One runnable in a dump of the tree.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// Its name in the tree.
    pub distinguished_name: DistinguishedName,
    /// Its state.
    pub state: State,
    /// When it came into that state, by the clock of this machine.
    pub since: SystemTime,
    /// How often it was started again under its parent's present life, also because a sibling of its group died.
    pub restarts: u64,
    /// How often it was started again within the last [`RESTART_WINDOW`](crate::RESTART_WINDOW); stops counting at
    /// [`RESTARTS_COUNTED`](crate::RESTARTS_COUNTED).
    pub recent_restarts: u32,
    /// How often in a row it died without staying up for as long as its backoff.
    pub failures_in_a_row: u32,
    /// What it died of last, with the chain of causes; kept when it is started again.
    pub last_error: Option<String>,
    /// How long until it is started again; `None` when that is not planned.
    pub starts_in: Option<Duration>,
    /// True while anything of it runs: its future, its tasks, its blocking closures, its processes.
    pub running: bool,
    /// True when its context was cancelled.
    pub cancelled: bool,
    /// True when it did not stop within its deadline.
    pub overdue: bool,
}
