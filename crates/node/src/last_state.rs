//! `last_state.json`: what can still be said of the node when it does not run.

use std::time::Duration;

use polis_condition::Severity;
use polis_control::{LastState, NodeState, Status};
use polis_storage::PlainFile;
use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::status::Sources;

/// Condition that is raised while the last state cannot be written.
const CONDITION: &str = "last-state-not-written";

/// Pause before a write that has failed is repeated.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// How long a state on the way may be seen by nobody but those who ask. A start goes through several within less, and each
/// write to the disk would hold up those that the start itself waits for.
const PASSING: Duration = Duration::from_millis(200);

/// Writes the status down after each transition, or after the last one of several that follow each other quickly, and at an
/// orderly stop: a runnable. It stops only after the last one is written.
pub(crate) async fn keep(
    context: Context,
    file: PlainFile,
    mut status: watch::Receiver<Status>,
    sources: Sources,
) -> RunnableResult {
    context.healthy();
    let mut written = None;
    loop {
        let mut now = status.borrow_and_update().clone();
        if written.is_some_and(|written| written != (now.state, now.phase)) && !is_at_rest(now.state) {
            let rest = status.wait_for(|status| is_at_rest(status.state));
            tokio::select! {
                _ = timeout(PASSING, rest) => {}
                _ = context.cancelled() => {}
            }
            now = status.borrow_and_update().clone();
        }
        let transition = (now.state, now.phase);
        if written != Some(transition) {
            if !write(&context, &file, now).await {
                // A change of the status is no reason to hurry: the condition that was just raised is one.
                context.unless_cancelled(tokio::time::sleep(RETRY_PAUSE)).await?;
                continue;
            }
            written = Some(transition);
        }
        tokio::select! {
            biased;
            changed = status.changed() => changed?,
            cancelled = context.cancelled() => {
                // Roles, contact and conditions may be others than at the last transition, and nobody can ask a node that is stopped for
                // them. What was published is the node before its parts stopped; but who publishes is being stopped, too, perhaps
                // before it has seen the last transition.
                let (published, now) = (status.borrow().clone(), sources.now());
                let is_same = (published.state, published.phase) == (now.state, now.phase);
                write(&context, &file, if is_same { published } else { now }).await;
                return Err(cancelled.into());
            }
        }
    }
}

/// Whether the node has come to where it stays by itself.
const fn is_at_rest(state: NodeState) -> bool {
    match state {
        NodeState::Running | NodeState::Failed => true,
        NodeState::New | NodeState::CreatingCluster | NodeState::Registering | NodeState::Joining => false,
    }
}

/// The file is for people and decides nothing, so a failure to write it is only a condition. Returns whether it was written.
async fn write(context: &Context, file: &PlainFile, status: Status) -> bool {
    let last = LastState { version: LastState::VERSION, status: Status { running: false, ..status } };
    let mut bytes = serde_json::to_vec_pretty(&last).unwrap_or_default();
    bytes.push(b'\n');
    let target = file.clone();
    match context.blocking(move || target.write(&bytes, "last-state")).await {
        Ok(()) => {
            context.conditions().clear(CONDITION);
            true
        }
        Err(error) => {
            context.conditions().raise(
                CONDITION,
                Severity::Warning,
                format!("{} could not be written: {}", file.full_path().display(), with_causes(&error)),
                "the node is not affected; see to the disk: it is tried again every few seconds",
            );
            false
        }
    }
}
