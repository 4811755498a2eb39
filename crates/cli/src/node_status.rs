//! `polis node status`.
//!
//! Without `--wait` the node is asked once; when none runs, the last state that one wrote down is shown. With it, the
//! socket is tried until a node listens, and its status is followed until the state is reached.

mod last_state;
mod wait;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use polis_control::{Client, ClientError, Status};

use crate::arguments::{NodeStatusArguments, OutputFormat};
use crate::failure::Failure;
use crate::local::{AskFailure, silent};
use crate::shell;
use crate::view::{Paint, print_value, render_status};

pub(crate) use last_state::{LastStateSeen, read_last_state};

pub(crate) fn run(arguments: &NodeStatusArguments) -> Result<ExitCode, Failure> {
    let root = &arguments.root;
    runtime()?.block_on(async {
        match arguments.wait {
            Some(state) => wait::run(arguments, state).await,
            None => match ask(root, arguments.timeout).await {
                Ok(status) => {
                    show(&status, arguments.output)?;
                    Ok(ExitCode::SUCCESS)
                }
                Err(AskFailure::Client(error @ ClientError::NotRunning { .. })) => {
                    show_last(root, arguments.output, &error)
                }
                Err(AskFailure::Client(error)) => Err(Failure::of(&error)),
                Err(AskFailure::TimedOut) => Err(silent(&format!("the node at {}", root.display()), arguments.timeout)),
            },
        }
    })
}

/// A runtime for the few things that a command waits for: one thread is enough.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built
        .map_err(|error| Failure::failed("this process could not get what it needs to wait for a node").because(&error))
}

/// Asks the node at `root` once.
pub(crate) async fn ask(root: &Path, timeout: Duration) -> Result<Status, AskFailure> {
    let answer = async { Client::connect(root, false).await?.next().await };
    match tokio::time::timeout(timeout, answer).await {
        Ok(status) => status.map_err(AskFailure::Client),
        Err(_) => Err(AskFailure::TimedOut),
    }
}

fn show(status: &Status, output: OutputFormat) -> Result<(), Failure> {
    print_value(output, status, |wide| render_status(status, Timestamp::now(), wide, Paint::for_stdout()))
}

/// Shows what the node wrote down last, and says on the standard error that it does not run.
fn show_last(root: &Path, output: OutputFormat, cause: &ClientError) -> Result<ExitCode, Failure> {
    let not_running = format!("no node runs at {}", root.display());
    let start = format!("start it: polis node run --root {}", shell::quote(root));
    match read_last_state(root) {
        Ok(Some(last)) => {
            show(&last, output)?;
            Err(Failure::failed(not_running).because_of("what is shown is the state that it wrote down last").hint(start))
        }
        Ok(None) if !root.is_dir() => {
            Err(Failure::failed(not_running).because_of("there is no such directory").hint("check the path after --root"))
        }
        Ok(None) => Err(Failure::failed(not_running)
            .because(cause)
            .because_of("there is no last_state.json either, so none has run here")
            .hint(start)),
        Err(error) => Err(Failure::failed(not_running).because(&error).hint(format!(
            "the file only tells what happened; the node's data are elsewhere, and its next start writes the file anew.\n{start}"
        ))),
    }
}
