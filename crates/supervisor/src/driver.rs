//! The loop: carries out what the tree says, and sleeps when there is nothing.

use std::collections::HashMap;
use std::sync::Arc;

use polis_condition::{Conditions, Severity};
use polis_logtree::{DistinguishedName, Logger};
use tokio::time::sleep_until;

use crate::core::{Action, NodeKey};
use crate::life::Life;
use crate::panics;
use crate::report::Metrics;
use crate::runnable::SharedRunnable;
use crate::shared::{Progress, Shared};

/// The name of the condition that names runnables which do not stop within their deadline.
pub const DOES_NOT_STOP: &str = "supervisor-runnable-does-not-stop";

/// The name of the condition that names runnables which die again and again.
pub const RESTARTS_OFTEN: &str = "supervisor-runnable-restarts-often";

/// Distinguished names that one message lists; it tells how many more there are.
const NAMES_LISTED: usize = 10;

/// The name under which the supervisor logs its own messages (metropolis.md A.5).
pub(crate) const OWN_NAME: &str = "supervisor";

pub(crate) struct Driver {
    shared: Arc<Shared>,
    metrics: Vec<Arc<dyn Metrics>>,
    /// The life of each node that was started last.
    lives: HashMap<NodeKey, Arc<Life>>,
    /// Those that do not stop, as they were told last.
    overdue: Vec<DistinguishedName>,
    logger: Logger,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, metrics: Vec<Arc<dyn Metrics>>, logger: Logger) -> Self {
        Self { shared, metrics, lives: HashMap::new(), overdue: Vec::new(), logger }
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
            Action::Overdue(names) => self.overdue(names),
            Action::RestartsOften(names) => self.restarts_often(&names),
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

    fn overdue(&mut self, names: Vec<DistinguishedName>) {
        for name in names.iter().filter(|name| !self.overdue.contains(name)) {
            self.logger.warning(format!("{name} was asked to stop and still runs past its deadline"));
        }
        let message = format!("asked to stop and still running past the deadline: {}", list(&names));
        set(
            &self.shared.conditions,
            DOES_NOT_STOP,
            &names,
            Severity::Error,
            message,
            "it is aborted after a further grace; if it stays, it blocks a thread: restart the node and report the names",
        );
        self.overdue = names;
    }

    fn restarts_often(&self, names: &[DistinguishedName]) {
        let message = format!("dying again and again: {}", list(names));
        set(
            &self.shared.conditions,
            RESTARTS_OFTEN,
            names,
            Severity::Warning,
            message,
            "the log under the name says what it dies of; it is started again for ever, at growing intervals",
        );
    }
}

fn set(
    conditions: &Conditions,
    name: &str,
    names: &[DistinguishedName],
    severity: Severity,
    message: String,
    hint: &str,
) {
    if names.is_empty() {
        conditions.clear(name);
    } else {
        conditions.raise(name, severity, message, hint);
    }
}

fn list(names: &[DistinguishedName]) -> String {
    let mut listed: Vec<String> = names.iter().take(NAMES_LISTED).map(ToString::to_string).collect();
    if names.len() > NAMES_LISTED {
        listed.push(format!("and {} more", names.len() - NAMES_LISTED));
    }
    listed.join(", ")
}
