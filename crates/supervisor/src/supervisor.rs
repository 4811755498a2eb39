//! The supervisor: building one, looking at it, shutting it down.

use std::sync::Arc;

use polis_condition::Conditions;
use polis_logtree::{DistinguishedName, LogTree};
use tokio::runtime::Handle;

use crate::core::Tree;
use crate::driver::{Driver, OWN_NAME};
use crate::panics;
use crate::report::Metrics;
use crate::report::NodeReport;
use crate::runnable::{Runnable, SharedRunnable};
use crate::settings::Settings;
use crate::shared::{Progress, Shared};

/// The name of the root of the tree of runnables.
pub const ROOT_NAME: &str = "root";

/// Runs a tree of runnables. Dropping it asks everything to stop and does not wait.
#[must_use = "dropping a supervisor stops everything that runs under it"]
pub struct Supervisor {
    observer: Observer,
}

/// Sets up a [`Supervisor`].
#[derive(Default)]
pub struct Builder {
    log_tree: Option<LogTree>,
    conditions: Conditions,
    metrics: Vec<Arc<dyn Metrics>>,
    settings: Settings,
}

/// Sees the tree of a supervisor. Clones see the same one.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

/// Runnables that did not stop, although they were cancelled and then aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("still running after they were cancelled and aborted: {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct StillRunning {
    /// Their names.
    pub names: Vec<DistinguishedName>,
}

impl Supervisor {
    /// A supervisor with a log tree and conditions of its own, no metrics, and the default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Every runnable: parents before their children, siblings by name.
    #[must_use]
    pub fn dump(&self) -> Vec<NodeReport> {
        self.observer.dump()
    }

    /// Sees the tree, and may be kept anywhere.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Cancels every runnable and waits until nothing runs any more.
    ///
    /// # Errors
    ///
    /// Names those that still run after their deadline, after they were aborted, and after one more grace. They go on
    /// being waited for in the background.
    pub async fn shutdown(self) -> Result<(), StillRunning> {
        let shared = Arc::clone(&self.observer.0);
        shared.tell(|tree, now| tree.shut_down(now));
        let mut progress = shared.progress.subscribe();
        match progress.wait_for(|progress| *progress != Progress::Running).await.as_deref() {
            Ok(Progress::GivenUp(names)) => Err(StillRunning { names: names.clone() }),
            Ok(Progress::Stopped | Progress::Running) | Err(_) => Ok(()),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.observer.0.tell(|tree, now| tree.shut_down(now));
    }
}

impl Builder {
    /// The log tree that runnables log into.
    #[must_use]
    pub fn log_tree(mut self, log_tree: LogTree) -> Self {
        self.log_tree = Some(log_tree);
        self
    }

    /// The conditions that the supervisor and the runnables raise.
    #[must_use]
    pub fn conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// Hears of every transition; may be given more than once.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics.push(metrics);
        self
    }

    /// The numbers.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Starts a supervisor on the runtime that this is called in, with `root` as the runnable named [`ROOT_NAME`].
    ///
    /// The runtime must have timers. Should one runnable block a worker thread, the others go on only if the runtime
    /// has another one.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[expect(clippy::disallowed_methods, reason = "the loop ends when everything has stopped")]
    pub fn start(self, root: impl Runnable) -> Supervisor {
        panics::install_hook();
        let handle = Handle::current();
        let log_tree = self.log_tree.unwrap_or_default();
        let top = DistinguishedName::root();
        let [root_name, own_name] = [ROOT_NAME, OWN_NAME].map(|name| top.child(name).expect("a constant, valid name"));
        let seed = self.settings.seed.unwrap_or_else(rand::random);
        let now = std::time::Duration::ZERO;
        let tree = Tree::new(self.settings, seed, root_name, SharedRunnable::new(root), now);
        let logger = log_tree.logger(&own_name);
        let shared = Arc::new(Shared::new(handle, log_tree, self.conditions, tree));
        let driver = Driver::new(Arc::clone(&shared), self.metrics, logger);
        shared.handle.spawn(driver.run());
        Supervisor { observer: Observer(shared) }
    }
}

impl Observer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Every runnable: parents before their children, siblings by name.
    #[must_use]
    pub fn dump(&self) -> Vec<NodeReport> {
        self.0.dump()
    }

    /// Waits until the tree is as wanted, and returns it. Looks after every change.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&[NodeReport]) -> bool) -> Vec<NodeReport> {
        let mut rounds = self.0.rounds.subscribe();
        loop {
            rounds.mark_unchanged();
            let dump = self.dump();
            if wanted(&dump) {
                return dump;
            }
            // The sender is in what we hold, so this cannot fail.
            if rounds.changed().await.is_err() {
                return dump;
            }
        }
    }

    /// The log tree that the runnables log into.
    #[must_use]
    pub fn log_tree(&self) -> &LogTree {
        &self.0.log_tree
    }

    /// The conditions that the supervisor and the runnables raise.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        &self.0.conditions
    }
}
