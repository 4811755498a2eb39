//! Groups: they fall together, wait for each other, and start together.

use std::mem;
use std::time::Duration;

use super::timers::Timer;
use super::{GroupKey, Moment, NodeKey, Tree};
use crate::report::State;

impl<P: Clone> Tree<P> {
    /// A member died: cancels all members with everything below them.
    pub(crate) fn fall(&mut self, key: GroupKey, now: Moment) {
        let group = self.group_mut(key);
        if mem::replace(&mut group.falling, true) {
            return;
        }
        for member in group.members.clone() {
            self.cancel(member, now);
        }
    }

    /// If the group has fallen and nothing of it lives any more: forgets what was below, and starts the backoff of the
    /// member that died. Of several the longest counts.
    pub(crate) fn settle(&mut self, key: GroupKey, now: Moment) {
        let group = self.group(key);
        let may_start = match group.parent {
            Some(parent) => !self.node(parent).cancelled,
            None => !self.shutting_down,
        };
        if !group.falling || group.live > 0 || group.restart.is_some() || !may_start {
            return;
        }
        let mut wait = Duration::ZERO;
        for member in group.members.clone() {
            self.forget_below(member);
            if self.node(member).state == Some(State::Dead) {
                let random = self.random();
                wait = wait.max(self.node_mut(member).backoff.next(random));
            }
        }
        let at = now + wait;
        self.group_mut(key).restart = Some(at);
        self.timers.set(at, Timer::Restart(key));
    }

    /// Starts all members of a group whose backoff is over.
    pub(crate) fn restart(&mut self, key: GroupKey, now: Moment) {
        let group = self.group_mut(key);
        group.falling = false;
        group.restart = None;
        for member in group.members.clone() {
            let node = self.node_mut(member);
            node.restarts += 1;
            node.recent_restarts.record(now);
            self.start(member, now);
        }
    }

    /// Resets the backoff of a life that has stayed healthy for longer than its backoff.
    pub(crate) fn give_credit(&mut self, key: NodeKey, now: Moment) {
        let node = self.node(key);
        if node.healthy_since.is_some_and(|since| now.saturating_sub(since) > node.backoff.interval()) {
            self.forgive_backoff(key);
        }
    }

    /// The runnable has ended as it should: nothing is held against it.
    pub(crate) fn forgive(&mut self, key: NodeKey) {
        self.forgive_backoff(key);
        self.acquit(key);
    }

    /// Puts a runnable on the list of those that restart often.
    pub(crate) fn accuse(&mut self, key: NodeKey) {
        let node = self.node_mut(key);
        if !mem::replace(&mut node.restarts_often, true) {
            let distinguished_name = node.distinguished_name.clone();
            self.restarts_often_changed |= self.restarts_often.insert(distinguished_name);
        }
    }

    /// When a runnable that restarted often becomes healthy: sets the timer to look whether it stays so.
    pub(crate) fn plan_review(&mut self, key: NodeKey, now: Moment) {
        let often = self.settings.restarts_often;
        let node = self.node_mut(key);
        let Some(since) = node.healthy_since.filter(|_| node.restarts_often) else { return };
        // One more than the backoff, because it must have been healthy for longer than that.
        let stayed = since + node.backoff.interval() + Duration::from_nanos(1);
        let at = node.recent_deaths.below(often, now).map_or(stayed, |calm| calm.max(stayed));
        node.review = Some(at);
        self.timers.set(at, Timer::Review(key));
    }

    /// The runnable has stayed healthy for long enough.
    pub(crate) fn review(&mut self, key: NodeKey, now: Moment) {
        self.node_mut(key).review = None;
        self.give_credit(key, now);
        self.acquit(key);
    }

    /// A life that comes back is not looked at any more.
    pub(crate) fn drop_review(&mut self, key: NodeKey) {
        let review = self.node_mut(key).review.take();
        self.timers.remove(review, Timer::Review(key));
    }

    fn forgive_backoff(&mut self, key: NodeKey) {
        let node = self.node_mut(key);
        node.backoff.reset();
        node.failures_in_a_row = 0;
    }

    fn acquit(&mut self, key: NodeKey) {
        let node = self.node_mut(key);
        if mem::take(&mut node.restarts_often) {
            let distinguished_name = node.distinguished_name.clone();
            self.restarts_often_changed |= self.restarts_often.remove(&distinguished_name);
        }
    }

    /// Forgets the children, groups and reserved names of a node, of which nothing lives any more.
    fn forget_below(&mut self, key: NodeKey) {
        let node = self.node_mut(key);
        node.reserved.clear();
        let mut groups = mem::take(&mut node.groups);
        node.children.clear();
        while let Some(group) = groups.pop() {
            let Some(group) = self.groups.remove(&group) else { continue };
            for member in group.members {
                let Some(node) = self.nodes.remove(&member) else { continue };
                groups.extend(node.groups);
                self.restarts_often_changed |= self.restarts_often.remove(&node.distinguished_name);
            }
        }
    }
}
