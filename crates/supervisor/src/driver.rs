//! The loop: carries out what the tree says, and sleeps when there is nothing.

use std::collections::HashMap;
use std::sync::Arc;

use polis_condition::Severity;
use polis_logtree::{DistinguishedName, Logger};
use tokio::time::sleep_until;

use crate::core::{Action, Listed, NodeKey};
use crate::life::Life;
use crate::panics;
use crate::report::Metrics;
use crate::runnable::SharedRunnable;
use crate::shared::{Progress, Shared};

/// The name of the condition that names runnables which do not stop within their deadline.
pub const DOES_NOT_STOP: &str = "supervisor-runnable-does-not-stop";

/// The name of the condition that names runnables which die again and again.
pub const RESTARTS_OFTEN: &str = "supervisor-runnable-restarts-often";

/// The name under which the supervisor logs its own messages (metropolis.md A.5).
pub(crate) const OWN_NAME: &str = "supervisor";

pub(crate) struct Driver {
    shared: Arc<Shared>,
    metrics: Vec<Arc<dyn Metrics>>,
    /// The life of each node that was started last.
    lives: HashMap<NodeKey, Arc<Life>>,
    logger: Logger,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, metrics: Vec<Arc<dyn Metrics>>, logger: Logger) -> Self {
        Self { shared, metrics, lives: HashMap::new(), logger }
    }

    /// Runs until everything has stopped after a shutdown.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            shared.looks();
            self.carry_out();
            if *shared.progress.borrow() == Progress::Stopped {
                return;
            }
            let next = shared.tree().next_timer().map(|at| shared.instant(at));
            match next {
                Some(at) => tokio::select! {
                    () = shared.wake.notified() => {}
                    () = sleep_until(at) => {}
                },
                None => shared.wake.notified().await,
            }
        }
    }

    /// Everything that is to be done now. The lock is not held while it is done.
    fn carry_out(&mut self) {
        self.shared.tree().advance(self.shared.now());
        let mut any = false;
        loop {
            let action = self.shared.tree().next_action();
            let Some(action) = action else { break };
            any = true;
            self.carry_out_one(action);
        }
        let progress = {
            let tree = self.shared.tree();
            if tree.is_stopped() {
                Progress::Stopped
            } else {
                tree.given_up().map_or(Progress::Running, Progress::GivenUp)
            }
        };
        self.shared.progress.send_if_modified(|known| {
            let changed = *known != progress;
            *known = progress;
            changed
        });
        if any {
            self.shared.rounds.send_modify(|rounds| *rounds += 1);
        }
    }

    fn carry_out_one(&mut self, action: Action<SharedRunnable>) {
        match action {
            Action::Start { life, distinguished_name, payload } => {
                let begun = Life::begin(&self.shared, life, distinguished_name, payload);
                self.lives.insert(life.node, begun);
            }
            Action::Cancel(node) => {
                if let Some(life) = self.lives.get(&node) {
                    life.cancel.cancel();
                }
            }
            Action::Abort(node) => {
                if let Some(life) = self.lives.get(&node) {
                    self.logger.warning(format!("aborting {}, which does not stop", life.distinguished_name));
                    life.kill.cancel();
                }
            }
            Action::Ended(node) => {
                self.lives.remove(&node);
            }
            Action::Transition(transition) => {
                for metrics in &self.metrics {
                    if let Err(panic) = panics::catch(|| metrics.transition(&transition)) {
                        self.logger.error(format!("a metrics hook {panic}"));
                    }
                }
            }
            Action::Died { distinguished_name, error } => self.log_death(&distinguished_name, &error),
            Action::Late(name) => {
                self.logger.warning(format!("{name} was asked to stop and still runs past its deadline"));
            }
            Action::Overdue(listed) => self.set(
                DOES_NOT_STOP,
                Severity::Error,
                "asked to stop and still running past the deadline",
                &listed,
                "it is aborted after a further grace; if it stays, it blocks a thread: restart the node and report the names",
            ),
            Action::RestartsOften(listed) => self.set(
                RESTARTS_OFTEN,
                Severity::Warning,
                "dying again and again",
                &listed,
                "the log under the name says what it dies of; it is started again for ever, at growing intervals",
            ),
        }
    }

    #[track_caller]
    fn log_death(&self, distinguished_name: &DistinguishedName, error: &str) {
        let location = std::panic::Location::caller();
        self.shared.log_tree.logger(distinguished_name).log(
            polis_logtree::Severity::Fatal,
            location,
            format!("died: {error}"),
        );
    }

    fn set(&self, condition: &str, severity: Severity, what: &str, listed: &Listed, hint: &str) {
        if listed.count == 0 {
            return self.shared.conditions.clear(condition);
        }
        let mut names: Vec<String> = listed.first.iter().map(ToString::to_string).collect();
        if listed.count > names.len() {
            names.push(format!("and {} more", listed.count - names.len()));
        }
        self.shared.conditions.raise(condition, severity, format!("{what}: {}", names.join(", ")), hint);
    }
}
