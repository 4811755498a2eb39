//! The scheduling of the supervisor, without I/O.
//!
//! [`Tree`] is told what happened and when, and says what is to be done as a queue of [`Action`]s. It knows no tasks,
//! no clock and no log: time is the [`Duration`] since the supervisor started, and comes in with every call. The loop
//! that carries the actions out makes no decision of its own.

mod cancel;
mod groups;
mod intensity;
mod lifecycle;
mod observe;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod timers;
mod tree;

use std::collections::BTreeSet;
use std::time::Duration;

use polis_logtree::DistinguishedName;

use crate::report::Transition;

pub use intensity::{RESTART_WINDOW, RESTARTS_COUNTED};
pub(crate) use observe::Observed;
pub use tree::{MAX_CHILDREN, MAX_DEPTH, MAX_RUNNABLES, StartError};
pub(crate) use tree::{SignalError, Tree};

/// Time since the start of the supervisor.
pub(crate) type Moment = Duration;

/// One runnable of the tree, for as long as its parent lives. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeKey(u64);

/// Runnables that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupKey(u64);

/// One life of a runnable: the node, and which of its starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) node: NodeKey,
    pub(crate) number: u64,
}

/// How a runnable came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It returned without an error.
    Finished,
    /// It returned the error that says it was cancelled.
    Cancelled,
    /// It returned the error that asks for its next life.
    Anew,
    /// It was aborted because it did not stop.
    Aborted,
    /// It returned an error, panicked, or broke a rule: the error with its causes.
    Failed(String),
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub(crate) enum Action<P> {
    /// Begin this life.
    Start { life: Life, distinguished_name: DistinguishedName, payload: P },
    /// Cancel the context of the life that runs.
    Cancel(NodeKey),
    /// Abort the task of the life that runs.
    Abort(NodeKey),
    /// Nothing of the life that ran is left.
    Ended(NodeKey),
    /// Tell the metrics.
    Transition(Transition),
    /// Log the death of a runnable on its own name.
    Died { distinguished_name: DistinguishedName, error: String },
    /// Log that this runnable has not stopped within its deadline.
    Late(DistinguishedName),
    /// These runnables do not stop, after a change of the list.
    Overdue(Listed),
    /// These runnables restart often, after a change of the list.
    RestartsOften(Listed),
}

/// The first of some names, and how many there are in all. Thousands may get on a list at once, so nobody is told the
/// whole of it, nor of each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) first: Vec<DistinguishedName>,
    pub(crate) count: usize,
}

impl Listed {
    /// So many names are told.
    const FIRST: usize = 10;

    fn of(names: &BTreeSet<DistinguishedName>) -> Self {
        Self { first: names.iter().take(Self::FIRST).cloned().collect(), count: names.len() }
    }
}
