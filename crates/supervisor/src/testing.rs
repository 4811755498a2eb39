//! A harness for tests of runnables.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use polis_condition::Conditions;
use polis_logtree::{DistinguishedName, LogTree, ReadOptions, console};

use crate::driver::DOES_NOT_STOP;
use crate::report::{NodeReport, State};
use crate::runnable::Runnable;
use crate::settings::Settings;
use crate::supervisor::{Observer, ROOT_NAME, Supervisor};

/// Runs a runnable as the root of a tree of its own, and makes the test fail when something is wrong with it at the
/// end.
///
/// A test ends it with [`Harness::finish`], which shuts the tree down and fails the test, telling names and log, when a
/// runnable still lives after it was cancelled and aborted, when one had to be aborted, or when the root died of
/// anything. A harness that is dropped without it fails the test too, unless the test is failing already.
pub struct Harness {
    supervisor: Option<Supervisor>,
    observer: Observer,
}

impl Harness {
    /// Runs `root` with the default settings, except that runnables get two seconds to stop.
    pub fn start(root: impl Runnable) -> Self {
        let two_seconds = Duration::from_secs(2);
        let settings = Settings { stop_deadline: two_seconds, stop_grace: two_seconds, ..Settings::default() };
        Self::start_with(settings, root)
    }

    /// Runs `root` with these settings.
    pub fn start_with(settings: Settings, root: impl Runnable) -> Self {
        let supervisor = Supervisor::builder().settings(settings).start(root);
        let observer = supervisor.observer();
        Self { supervisor: Some(supervisor), observer }
    }

    /// Sees the tree.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The log of the tree.
    #[must_use]
    pub fn log_tree(&self) -> &LogTree {
        self.observer.log_tree()
    }

    /// The conditions of the tree.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        self.observer.conditions()
    }

    /// Waits until the runnable with this name is in this state.
    ///
    /// # Panics
    ///
    /// When it is not within `deadline`; tells the tree and the log.
    #[track_caller]
    pub fn wait_for(&self, name: &str, state: State, deadline: Duration) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let is_it = |node: &NodeReport| node.distinguished_name.as_str() == name && node.state == state;
            let wait = self.observer.wait_until(|dump| dump.iter().any(is_it));
            if tokio::time::timeout(deadline, wait).await.is_err() {
                panic!("{place}: {name} was not {state} within {deadline:?}\n{}", self.describe());
            }
        }
    }

    /// Ends the tree.
    ///
    /// # Panics
    ///
    /// As described for [`Harness`].
    pub async fn finish(mut self) {
        let Some(supervisor) = self.supervisor.take() else { return };
        let mut conditions = self.conditions().watch();
        let shutdown = supervisor.shutdown();
        tokio::pin!(shutdown);
        let mut overdue = None;
        let result = loop {
            overdue = self.conditions().get(DOES_NOT_STOP).map(|condition| condition.message).or(overdue);
            tokio::select! {
                result = &mut shutdown => break result,
                Ok(()) = conditions.changed() => {}
            }
        };
        if let Err(still_running) = result {
            panic!("the test ends while runnables are {still_running}\n{}", self.describe());
        }
        if let Some(overdue) = overdue {
            panic!("runnables had to be aborted: {overdue}\n{}", self.describe());
        }
        let root = self.observer.dump().into_iter().find(|node| node.distinguished_name.as_str() == ROOT_NAME);
        if let Some(error) = root.and_then(|root| root.last_error) {
            panic!("the root died: {error}\n{}", self.describe());
        }
    }

    /// The tree and the log, for the message of a test that fails.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::from("tree:\n");
        for node in self.observer.dump() {
            let running = if node.running { ", running" } else { "" };
            let error = node.last_error.map(|error| format!(", last error: {error}")).unwrap_or_default();
            let restarts = node.restarts;
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "  {}: {}{running}, restarts {restarts}{error}", node.distinguished_name, node.state);
        }
        text.push_str("log:\n");
        let options = ReadOptions { with_children: true, ..ReadOptions::default() };
        match self.log_tree().read(&DistinguishedName::root(), options) {
            Ok(reader) => {
                for entry in &reader.backlog {
                    let _ = writeln!(text, "  {}", console::full(entry, console::Style::default()));
                }
            }
            Err(error) => {
                let _ = writeln!(text, "  cannot be read: {error}");
            }
        }
        text
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if self.supervisor.is_some() && !thread::panicking() {
            panic!("a harness was dropped without finish(), so nobody knows whether its runnables have ended");
        }
    }
}
