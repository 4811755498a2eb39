//! One life of a runnable: it starts, signals, comes back, and is over.

use super::timers::Timer;
use super::tree::{Phase, Pressure, SignalError, Stopping, bounded};
use super::{Action, Life, Moment, NodeKey, Outcome, Tree};
use crate::report::State;

impl<P: Clone> Tree<P> {
    /// Begins the next life of a node that is idle.
    pub(crate) fn start(&mut self, key: NodeKey, now: Moment) {
        let node = self.node_mut(key);
        node.number += 1;
        node.phase = Phase::Running;
        node.signalled_done = false;
        node.cancelled = false;
        node.healthy_since = None;
        let life = Life { node: key, number: node.number };
        let (distinguished_name, payload) = (node.distinguished_name.clone(), node.payload.clone());
        for (node, group) in self.path_to_root(key) {
            self.node_mut(node).live += 1;
            self.group_mut(group).live += 1;
        }
        self.set_state(key, State::New, now);
        self.actions.push_back(Action::Start { life, distinguished_name, payload });
    }

    /// The runnable says that it is up. A life that is over is not heard.
    pub(crate) fn healthy(&mut self, life: Life, now: Moment) -> Result<(), SignalError> {
        let Some(node) = self.living(life).filter(|node| node.phase == Phase::Running) else { return Ok(()) };
        match node.state {
            Some(State::New) | None => {}
            Some(state @ (State::Healthy | State::Dead | State::Done | State::Canceled)) => {
                return Err(SignalError::Healthy(state));
            }
        }
        self.node_mut(life.node).healthy_since = Some(now);
        self.set_state(life.node, State::Healthy, now);
        self.plan_review(life.node, now);
        Ok(())
    }

    /// The runnable says that it may return without that being a failure. A life that is over is not heard.
    pub(crate) fn done(&mut self, life: Life) -> Result<(), SignalError> {
        let Some(node) = self.living(life).filter(|node| node.phase == Phase::Running) else { return Ok(()) };
        match node.state {
            Some(State::Healthy) if node.signalled_done => Err(SignalError::DoneTwice),
            Some(State::Healthy) => {
                self.node_mut(life.node).signalled_done = true;
                Ok(())
            }
            Some(state @ (State::New | State::Dead | State::Done | State::Canceled)) => Err(SignalError::Done(state)),
            None => Err(SignalError::Done(State::New)),
        }
    }

    /// The future of the runnable came back. Tasks, closures and processes of it may still be there.
    pub(crate) fn returned(&mut self, life: Life, outcome: Outcome, now: Moment) {
        let Some(node) = self.living(life).filter(|node| node.phase == Phase::Running) else { return };
        let (cancelled, signalled_done) = (node.cancelled, node.signalled_done);
        self.node_mut(life.node).phase = Phase::Leaving;
        self.drop_review(life.node);
        self.give_credit(life.node, now);
        if self.node(life.node).stopping.is_none() {
            self.press(life.node, Pressure::Asked, now);
        }
        let error = match outcome {
            Outcome::Finished if signalled_done => {
                self.forgive(life.node);
                return self.set_state(life.node, State::Done, now);
            }
            Outcome::Finished | Outcome::Cancelled | Outcome::Anew if cancelled => {
                return self.set_state(life.node, State::Canceled, now);
            }
            Outcome::Anew => {
                self.forgive(life.node);
                self.set_state(life.node, State::Canceled, now);
                let group = self.node(life.node).group;
                return self.fall(group, now);
            }
            Outcome::Finished => "returned without having signalled Done".into(),
            Outcome::Cancelled => {
                "returned the error of a cancelled context, but its own context was not cancelled".into()
            }
            Outcome::Aborted => "was aborted because it did not stop after it was cancelled".into(),
            Outcome::Failed(error) => bounded(error),
        };
        self.die(life.node, error, now);
    }

    /// Nothing of this life is left.
    pub(crate) fn ended(&mut self, life: Life, now: Moment) {
        if self.living(life).is_none_or(|node| node.phase != Phase::Leaving) {
            return;
        }
        let node = self.node_mut(life.node);
        node.phase = Phase::Idle;
        let stopping = node.stopping.take();
        let distinguished_name = node.distinguished_name.clone();
        self.timers.remove(stopping.and_then(|stopping| stopping.timer), Timer::Stop(life.node));
        self.overdue_changed |= self.overdue.remove(&distinguished_name);
        self.given_up -= usize::from(stopping.is_some_and(|stopping| stopping.pressure == Pressure::GivenUp));
        self.actions.push_back(Action::Ended(life.node));
        let path = self.path_to_root(life.node);
        for &(node, group) in &path {
            self.node_mut(node).live -= 1;
            self.group_mut(group).live -= 1;
        }
        // At most one of these is ready: a group that falls has cancelled everything below it.
        for (_, group) in path {
            self.settle(group, now);
        }
    }

    /// Presses a runnable that is to stop, and sets the timer for the next step.
    pub(crate) fn press(&mut self, key: NodeKey, pressure: Pressure, now: Moment) {
        let wait = match pressure {
            Pressure::Asked => Some(self.settings.stop_deadline),
            Pressure::Named | Pressure::Aborted => Some(self.settings.stop_grace),
            Pressure::GivenUp => None,
        };
        let timer = wait.map(|wait| now + wait);
        if let Some(at) = timer {
            self.timers.set(at, Timer::Stop(key));
        }
        let node = self.node_mut(key);
        node.stopping = Some(Stopping { pressure, timer });
        match pressure {
            Pressure::Asked => {}
            Pressure::Named => {
                let distinguished_name = node.distinguished_name.clone();
                self.actions.push_back(Action::Late(distinguished_name.clone()));
                self.overdue_changed |= self.overdue.insert(distinguished_name);
            }
            Pressure::Aborted => self.actions.push_back(Action::Abort(key)),
            Pressure::GivenUp => self.given_up += 1,
        }
    }

    /// The node with its group, its parent with its group, and so on.
    fn path_to_root(&self, key: NodeKey) -> Vec<(NodeKey, super::GroupKey)> {
        let mut path = Vec::new();
        let mut next = Some(key);
        while let Some(key) = next {
            let node = self.node(key);
            path.push((key, node.group));
            next = node.parent;
        }
        path
    }

    fn die(&mut self, key: NodeKey, error: String, now: Moment) {
        let often = self.settings.restarts_often;
        let node = self.node_mut(key);
        node.failures_in_a_row = node.failures_in_a_row.saturating_add(1);
        node.recent_deaths.record(now);
        node.last_error = Some(error.clone());
        let restarts_often = node.failures_in_a_row >= often || node.recent_deaths.count(now) >= often;
        let (distinguished_name, group) = (node.distinguished_name.clone(), node.group);
        self.set_state(key, State::Dead, now);
        self.actions.push_back(Action::Died { distinguished_name, error });
        if restarts_often {
            self.accuse(key);
        }
        self.fall(group, now);
    }
}
