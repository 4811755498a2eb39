//! What is to happen later. When nothing is, there is no timer.

use std::collections::BTreeSet;

use super::{GroupKey, Moment, NodeKey};

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A runnable has had its time to stop.
    Stop(NodeKey),
    /// The backoff of a group is over.
    Restart(GroupKey),
    /// A runnable that restarted often may have stayed up for long enough.
    Review(NodeKey),
}

/// All timers, by time.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Moment, Timer)>);

impl Timers {
    /// Sets a timer. `at` must be remembered to remove it.
    pub(crate) fn set(&mut self, at: Moment, timer: Timer) {
        self.0.insert((at, timer));
    }

    /// Removes a timer that was set for `at`, if there is one.
    pub(crate) fn remove(&mut self, at: Option<Moment>, timer: Timer) {
        if let Some(at) = at {
            self.0.remove(&(at, timer));
        }
    }

    /// When the next timer is due.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes the first timer that is due now.
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<Timer> {
        let first = self.0.first().filter(|(at, _)| *at <= now).copied()?;
        self.0.remove(&first);
        Some(first.1)
    }
}

#[cfg(test)]
impl Timers {
    /// How many timers are set.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
