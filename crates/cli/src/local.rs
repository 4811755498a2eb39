//! Commands for the node on this machine: over its socket while it runs, and on its files while it does not. They work as the
//! user who owns the node, and need no cluster.

mod arguments;
mod install_unit;
mod peers;
mod report;
mod reset;
mod unit;

use std::process::ExitCode;
use std::time::Duration;

use polis_control::{ClientError, NodeFiles, NodeFilesError};

use crate::duration;
use crate::failure::Failure;

pub(crate) use arguments::LocalCommand;

/// How long a running node may take to answer. Mostly it only looks at itself; when it has to ask the leader, it gives up before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn run(command: &LocalCommand, files: &dyn NodeFiles) -> Result<ExitCode, Failure> {
    match command {
        LocalCommand::Peers(arguments) => peers::run(arguments, files),
        LocalCommand::Reset(arguments) => reset::run(arguments, files),
        LocalCommand::Report(arguments) => report::run(arguments),
        LocalCommand::InstallUnit(arguments) => install_unit::run(arguments),
    }
}

/// Why a running node did not do what was asked, or tell it.
#[derive(Debug)]
pub(crate) enum AskFailure {
    Client(ClientError),
    TimedOut,
}

/// Waits for the answer of a running node, but not for ever.
pub(crate) async fn within_timeout<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, AskFailure> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(AskFailure::Client),
        Err(_) => Err(AskFailure::TimedOut),
    }
}

/// A node that has taken the connection and then said nothing for so long.
pub(crate) fn silent(node: &str, waited: Duration) -> Failure {
    Failure::failed(format!("{node} did not answer within {}", duration::show(waited)))
        .because_of(
            "it listens on its control socket, but says nothing; it may be stopped or starved of processor time",
        )
        .hint("look at its process and its log")
}

impl From<AskFailure> for Failure {
    fn from(failure: AskFailure) -> Self {
        match failure {
            AskFailure::Client(ClientError::Refused { socket, refusal }) => {
                let hint = refusal.hint.clone();
                let failure = Self::of(&ClientError::Refused { socket, refusal });
                match hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            }
            AskFailure::Client(error) => Self::of(&error),
            AskFailure::TimedOut => silent("the node", ANSWER_TIMEOUT),
        }
    }
}

fn files_failure(error: &NodeFilesError) -> Failure {
    let failure = Failure::of(error);
    match &error.hint {
        Some(hint) => failure.hint(hint.clone()),
        None => failure,
    }
}

/// For tests of commands that have nothing to do with files of nodes.
#[cfg(test)]
pub(crate) struct NoFiles;

#[cfg(test)]
impl NodeFiles for NoFiles {
    fn reset(&self, root: &std::path::Path) -> Result<Box<dyn polis_control::Reset>, NodeFilesError> {
        Err(no_files(root))
    }

    fn set_peers(&self, root: &std::path::Path, _peers: &[polis_control::Peer]) -> Result<(), NodeFilesError> {
        Err(no_files(root))
    }

    fn recover(
        &self,
        request: &polis_control::RecoverRequest,
    ) -> Result<Box<dyn polis_control::Recovery>, polis_control::RecoverError> {
        Err(polis_control::RecoverError::Failed(no_files(&request.root)))
    }
}

#[cfg(test)]
fn no_files(root: &std::path::Path) -> NodeFilesError {
    NodeFilesError { what: format!("there is no node at {}", root.display()), hint: None, source: None }
}
