//! What the tree looks like from outside.

use std::mem;
use std::time::Duration;

use polis_logtree::DistinguishedName;

use super::tree::Phase;
use super::{Action, Listed, Moment, NodeKey, Tree};
use crate::report::State;

/// One node as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) distinguished_name: DistinguishedName,
    pub(crate) state: State,
    pub(crate) since: Moment,
    pub(crate) restarts: u64,
    pub(crate) recent_restarts: u32,
    pub(crate) failures_in_a_row: u32,
    pub(crate) last_error: Option<String>,
    pub(crate) starts_in: Option<Duration>,
    pub(crate) running: bool,
    pub(crate) cancelled: bool,
    pub(crate) overdue: bool,
}

impl<P: Clone> Tree<P> {
    /// The next action, in order. The lists come last, once for all changes before.
    pub(crate) fn next_action(&mut self) -> Option<Action<P>> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if mem::take(&mut self.overdue_changed) {
            return Some(Action::Overdue(Listed::of(&self.overdue)));
        }
        mem::take(&mut self.restarts_often_changed).then(|| Action::RestartsOften(Listed::of(&self.restarts_often)))
    }

    /// When [`Tree::advance`] has something to do; `None` when nothing is pending.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// True when it was shut down and nothing lives.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shutting_down && self.node(self.root).live == 0
    }

    /// After a shutdown: what still lives, when nothing more can be done about any of it.
    pub(crate) fn given_up(&self) -> Option<Vec<DistinguishedName>> {
        if !self.shutting_down || self.is_stopped() || self.given_up < self.node(self.root).live {
            return None;
        }
        let living = self.nodes.values().filter(|node| node.phase != Phase::Idle);
        let mut names: Vec<DistinguishedName> = living.map(|node| node.distinguished_name.clone()).collect();
        names.sort();
        Some(names)
    }

    /// Every node, parents before their children, siblings by name.
    pub(crate) fn observe(&self, now: Moment) -> Vec<Observed> {
        let mut observed = Vec::with_capacity(self.nodes.len());
        let mut todo = vec![self.root];
        while let Some(key) = todo.pop() {
            observed.push(self.observe_one(key, now));
            todo.extend(self.node(key).children.values().rev());
        }
        observed
    }

    fn observe_one(&self, key: NodeKey, now: Moment) -> Observed {
        let node = self.node(key);
        Observed {
            distinguished_name: node.distinguished_name.clone(),
            state: node.state.unwrap_or(State::New),
            since: node.since,
            restarts: node.restarts,
            recent_restarts: node.recent_restarts.count(now),
            failures_in_a_row: node.failures_in_a_row,
            last_error: node.last_error.clone(),
            starts_in: self.group(node.group).restart.map(|at| at.saturating_sub(now)),
            running: node.phase != Phase::Idle,
            cancelled: node.cancelled,
            overdue: self.overdue.contains(&node.distinguished_name),
        }
    }
}
