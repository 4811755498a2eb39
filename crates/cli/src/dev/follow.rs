//! Watching a node on its way to Running.

use std::collections::HashSet;
use std::process::Child;
use std::time::Duration;

use polis_condition::{Condition, Severity};
use polis_control::{Client, ClientError, NodeState, Status};
use tokio::time::{Instant, timeout_at};

use super::directory::Directory;
use super::logs;
use super::process::ProcessIdentity;
use crate::duration;
use crate::failure::Failure;
use crate::node_status::{LastStateSeen, ask, read_last_state};
use crate::view::Progress;

/// Pause between two looks at a node that does not answer yet. It is short, as a start takes some tens of milliseconds
/// until the node listens; a look costs a failed connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Longest time for one answer of a node that listens.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the line of what is being waited for is written anew.
const REFRESH: Duration = Duration::from_millis(200);

/// Conditions that say nothing to who runs a trial: what it was asked for, and what is being done anyway. `dev status` does not
/// hide them.
const EXPECTED: [&str; 2] = ["storage-insecure", "waiting-for-approval"];

/// Number of last lines of the log that are shown when a node fails.
const LOG_LINES: usize = 10;

/// The node that is watched.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) directory: &'a Directory,
    pub(super) number: u32,
    pub(super) identity: ProcessIdentity,
    /// The process, if we started it: its exit status is known then.
    pub(super) child: Option<Child>,
    /// What of `last_state.json` was there before this start.
    pub(super) before: LastStateSeen,
}

/// Why a node is not Running.
#[derive(Debug)]
pub(super) struct NotRunning {
    failure: Failure,
    /// It has failed, and its process has ended or is about to.
    pub(super) has_failed: bool,
}

impl From<Failure> for NotRunning {
    fn from(failure: Failure) -> Self {
        Self { failure, has_failed: false }
    }
}

impl From<NotRunning> for Failure {
    fn from(error: NotRunning) -> Self {
        error.failure
    }
}

/// Shows every state and every condition of the node as they come, until it is Running. With `alone`, a line on the terminal
/// shows meanwhile what is being waited for; several that are watched at the same time would take it from each other.
///
/// # Errors
///
/// When the node ends, fails, speaks another version, or the time is up.
pub(super) async fn until_running(
    mut subject: Subject<'_>,
    timeout: Duration,
    alone: bool,
    progress: &Progress,
) -> Result<Status, NotRunning> {
    let has_failed = |failure| NotRunning { failure, has_failed: true };
    let root = subject.directory.node_root(subject.number);
    let begin = Instant::now();
    let deadline = begin + timeout;
    let mut shown = Shown { number: subject.number, alone, begin, state: None, conditions: HashSet::new(), last: None };
    while Instant::now() < deadline {
        match Client::connect(&root, true).await {
            Ok(mut client) => loop {
                match shown.next(&mut client, deadline, progress).await {
                    Some(Ok(status)) => {
                        shown.show(&status, progress);
                        match status.state {
                            NodeState::Running => return Ok(status),
                            NodeState::Failed => {
                                return Err(has_failed(failed(&subject, status.reason.as_deref(), None)));
                            }
                            NodeState::New
                            | NodeState::CreatingCluster
                            | NodeState::Registering
                            | NodeState::Joining => {}
                        }
                    }
                    // The time is up, or the node went away.
                    None | Some(Err(ClientError::Broken { .. })) => break,
                    Some(Err(error)) => return Err(Failure::of(&error).into()),
                }
            },
            Err(ClientError::NotRunning { .. }) => {
                shown.wait(progress);
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(Failure::of(&error).into()),
        }
        // In this order: what has ended by the first look has its exit status ready for the second.
        let is_running = subject.identity.is_running();
        let exit = subject.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if exit.is_some() || !is_running {
            let ended = match exit {
                Some(status) => format!("its process {} ended: {status}", subject.identity.pid),
                None => format!("its process {} has ended", subject.identity.pid),
            };
            let reason = match read_last_state(&root) {
                Ok(Some(last)) if LastStateSeen::now(&root) != subject.before => last.reason,
                Ok(_) | Err(_) => None,
            };
            return Err(has_failed(failed(&subject, reason.as_deref(), Some(ended))));
        }
    }
    Err(shown.timed_out(&subject, timeout).into())
}

/// Waits until the node answers, whatever it answers.
///
/// # Errors
///
/// When it ends, or the time is up.
pub(super) async fn until_answering(mut subject: Subject<'_>, timeout: Duration) -> Result<(), Failure> {
    let root = subject.directory.node_root(subject.number);
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if ask(&root, PATIENCE).await.is_ok() {
            return Ok(());
        }
        let exit = subject.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if exit.is_some() || !subject.identity.is_running() {
            return Err(failed(&subject, None, Some(format!("its process {} has ended", subject.identity.pid))));
        }
        tokio::time::sleep(PAUSE).await;
    }
    let number = subject.number;
    Err(Failure::failed(format!("node {number} does not answer after {}", duration::show(timeout)))
        .details(last_log_lines(&subject)))
}

/// What the user has seen of a node.
struct Shown {
    number: u32,
    alone: bool,
    begin: Instant,
    state: Option<NodeState>,
    /// Names and messages of conditions.
    conditions: HashSet<(String, String)>,
    last: Option<Status>,
}

impl Shown {
    fn show(&mut self, status: &Status, progress: &Progress) {
        if self.state != Some(status.state) {
            self.state = Some(status.state);
            progress.line(&format!(
                "node {}  {:>7}  {}",
                self.number,
                duration::show(self.begin.elapsed()),
                status.state
            ));
        }
        for condition in status.conditions.iter().filter(|condition| !EXPECTED.contains(&&*condition.name)) {
            if self.conditions.insert((condition.name.clone(), condition.message.clone())) {
                for line in condition_lines(condition) {
                    progress.line(&format!("{:17}{line}", format!("node {}", self.number)));
                }
            }
        }
        self.last = Some(status.clone());
    }

    /// The next status, or `None` at the deadline; shows meanwhile what is being waited for.
    async fn next(
        &self,
        client: &mut Client,
        deadline: Instant,
        progress: &Progress,
    ) -> Option<Result<Status, ClientError>> {
        let mut next = std::pin::pin!(client.next());
        while Instant::now() < deadline {
            match timeout_at(deadline.min(Instant::now() + REFRESH), &mut next).await {
                Ok(result) => return Some(result),
                Err(_) => self.wait(progress),
            }
        }
        None
    }

    fn wait(&self, progress: &Progress) {
        if !self.alone {
            return;
        }
        let state = self.state.map_or("starting", NodeState::name);
        progress.waiting(&format!("node {}  {:>7}  {state} ...", self.number, duration::show(self.begin.elapsed())));
    }

    fn timed_out(self, subject: &Subject<'_>, timeout: Duration) -> Failure {
        let number = subject.number;
        let failure = Failure::failed(format!("node {number} is not Running after {}", duration::show(timeout)));
        let option = subject.directory.option();
        match self.last {
            Some(status) => failure
                .because_of(format!("it is in {}", status.state))
                .details(status.conditions.iter().flat_map(condition_lines)),
            None => failure.because_of("it has not answered yet").details(last_log_lines(subject)),
        }
        .hint(format!(
            "it stays and keeps trying; look again: polis dev status{option}, polis dev logs {number}{option}"
        ))
    }
}

fn condition_lines(condition: &Condition) -> Vec<String> {
    let severity = match condition.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut lines = vec![format!("{severity}: {}: {}", condition.name, condition.message)];
    if !condition.hint.is_empty() {
        lines.push(format!("  hint: {}", condition.hint));
    }
    lines
}

fn failed(subject: &Subject<'_>, reason: Option<&str>, ended: Option<String>) -> Failure {
    let number = subject.number;
    let mut failure = Failure::failed(format!("node {number} has failed"));
    if let Some(reason) = reason {
        failure = failure.because_of(reason);
    }
    if let Some(ended) = ended {
        failure = failure.because_of(ended);
    }
    failure
        .hint(format!(
            "the end of its log stands below; all of it: polis dev logs {number}{}",
            subject.directory.option()
        ))
        .details(last_log_lines(subject))
}

fn last_log_lines(subject: &Subject<'_>) -> Vec<String> {
    let path = subject.directory.node_log(subject.number);
    logs::last_lines(&path, LOG_LINES)
        .unwrap_or_else(|error| vec![format!("{} could not be read: {error}", path.display())])
}
