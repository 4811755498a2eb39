//! Cancellation, and what happens when it is not heeded.

use super::timers::Timer;
use super::tree::{Phase, Pressure};
use super::{Action, GroupKey, Moment, NodeKey, Tree};

impl<P: Clone> Tree<P> {
    /// Cancels everything. Nothing is started again.
    pub(crate) fn shut_down(&mut self, now: Moment) {
        self.shutting_down = true;
        let group = self.node(self.root).group;
        self.stop_waiting(group);
        self.cancel(self.root, now);
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Moment) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Stop(key) => {
                    let Some(stopping) = self.node(key).stopping else { continue };
                    let pressure = match stopping.pressure {
                        Pressure::Asked => Pressure::Named,
                        Pressure::Named => Pressure::Aborted,
                        Pressure::Aborted | Pressure::GivenUp => Pressure::GivenUp,
                    };
                    self.press(key, pressure, now);
                }
                Timer::Restart(group) => self.restart(group, now),
                Timer::Review(key) => self.review(key, now),
            }
        }
    }

    /// Cancels a node and all its descendants.
    pub(crate) fn cancel(&mut self, key: NodeKey, now: Moment) {
        let mut todo = vec![key];
        while let Some(key) = todo.pop() {
            let node = self.node_mut(key);
            if node.cancelled {
                continue;
            }
            node.cancelled = true;
            todo.extend(node.children.values().copied());
            let groups = node.groups.clone();
            let (phase, stopping) = (node.phase, node.stopping);
            for group in groups {
                self.stop_waiting(group);
            }
            match phase {
                Phase::Running => {
                    self.actions.push_back(Action::Cancel(key));
                    if stopping.is_none() {
                        self.press(key, Pressure::Asked, now);
                    }
                }
                Phase::Leaving | Phase::Idle => {}
            }
        }
    }

    fn stop_waiting(&mut self, key: GroupKey) {
        let restart = self.group_mut(key).restart.take();
        self.timers.remove(restart, Timer::Restart(key));
    }
}
