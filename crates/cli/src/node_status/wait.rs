//! Waiting for a state.

use std::process::ExitCode;
use std::time::Duration;

use polis_control::{Client, ClientError, NodeState, Status};
use tokio::time::Instant;

use super::{LastStateSeen, read_last_state, show};
use crate::arguments::NodeStatusArguments;
use crate::duration;
use crate::failure::Failure;
use crate::view::Progress;

/// Shortest and longest pause between two attempts to reach a node that does not listen yet. A start takes some tens of
/// milliseconds, so the first attempts come quickly; a node that is away for long is not worth more than five a second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Whether a node that is in `now` has reached `wanted`: it is there, or it is Running, which lies behind every state but
/// Failed.
fn reached(now: NodeState, wanted: NodeState) -> bool {
    now == wanted || (now == NodeState::Running && wanted != NodeState::Failed)
}

pub(super) async fn run(arguments: &NodeStatusArguments, wanted: NodeState) -> Result<ExitCode, Failure> {
    let mut seen = Seen::default();
    match tokio::time::timeout(arguments.timeout, follow(arguments, wanted, &mut seen)).await {
        Ok(Ok(Outcome::Reached(status))) => {
            show(&status, arguments.output)?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(Ok(Outcome::Failed(status))) => {
            show(&status, arguments.output)?;
            let failure = Failure::failed(format!("the node at {} has failed", arguments.root.display()));
            Err(match &status.reason {
                Some(reason) => failure.because_of(reason.clone()),
                None => failure,
            })
        }
        Ok(Err(error)) => Err(Failure::of(&error)),
        Err(_) => Err(timed_out(arguments, wanted, seen)),
    }
}

/// How the waiting ended in time.
enum Outcome {
    Reached(Status),
    Failed(Status),
}

/// What was seen last, for the message when the time is up.
#[derive(Default)]
struct Seen {
    status: Option<Status>,
    refusal: Option<ClientError>,
}

async fn follow(arguments: &NodeStatusArguments, wanted: NodeState, seen: &mut Seen) -> Result<Outcome, ClientError> {
    let root = &arguments.root;
    let before = LastStateSeen::now(root);
    let begin = Instant::now();
    let progress = Progress::start();
    let mut pause = PAUSE_MIN;
    loop {
        let mut client = match Client::connect(root, true).await {
            Ok(client) => Some(client),
            Err(error @ ClientError::NotRunning { .. }) => {
                seen.refusal = Some(error);
                None
            }
            Err(error) => return Err(error),
        };
        while let Some(connected) = &mut client {
            match connected.next().await {
                Ok(status) if reached(status.state, wanted) => return Ok(Outcome::Reached(status)),
                Ok(status) if status.state == NodeState::Failed => return Ok(Outcome::Failed(status)),
                Ok(status) => {
                    progress.waiting(&format!("{}; waiting for {wanted}", status.state));
                    seen.status = Some(status);
                    pause = PAUSE_MIN;
                }
                Err(error @ ClientError::Broken { .. }) => {
                    (seen.status, seen.refusal, client) = (None, Some(error), None);
                }
                Err(error) => return Err(error),
            }
        }
        // A node that fails at once is gone before it was ever reached; what it wrote since we began is about this start.
        if LastStateSeen::now(root) != before
            && let Ok(Some(last)) = read_last_state(root)
            && last.state == NodeState::Failed
        {
            return Ok(if wanted == NodeState::Failed { Outcome::Reached(last) } else { Outcome::Failed(last) });
        }
        progress.waiting(&format!("no node at {} for {}", root.display(), duration::show(begin.elapsed())));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn timed_out(arguments: &NodeStatusArguments, wanted: NodeState, seen: Seen) -> Failure {
    let root = arguments.root.display();
    let failure = Failure::failed(format!(
        "the node at {root} has not reached {wanted} within {}",
        duration::show(arguments.timeout)
    ));
    match (seen.status, seen.refusal) {
        (Some(status), _) => {
            let conditions =
                status.conditions.iter().map(|condition| format!("{}: {}", condition.name, condition.message));
            failure
                .because_of(format!("it is in {}", status.state))
                .hint("it keeps trying; what hinders it stands below, and in `polis node status`")
                .details(conditions)
        }
        (None, Some(refusal)) => {
            let failure = failure.because(&refusal);
            match read_last_state(&arguments.root) {
                Ok(Some(last)) => failure.because_of(match &last.reason {
                    Some(reason) => format!("the last one that ran there ended in {}: {reason}", last.state),
                    None => format!("the last one that ran there was in {}", last.state),
                }),
                Ok(None) => failure,
                Err(error) => failure.because(&error),
            }
        }
        (None, None) => failure.because_of("it did not answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_lies_behind_every_state_but_failed() {
        for wanted in NodeState::ALL {
            assert_eq!(reached(NodeState::Running, wanted), wanted != NodeState::Failed, "{wanted}");
            assert!(reached(wanted, wanted));
        }
        assert!(!reached(NodeState::New, NodeState::Running));
        assert!(!reached(NodeState::Joining, NodeState::New));
        assert!(!reached(NodeState::Failed, NodeState::Running));
    }
}
