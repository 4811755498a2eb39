//! The commands of the `polis` binary: what a person types, and what they see.
//!
//! The crate is the edge of the program. It parses the command line ([`Invocation::parse`]), runs every command but
//! `node run` itself ([`run`]), and shows errors in one style: what failed, why, what it means for the quorum, and what to
//! do next. It asks a running node over its control socket, and a cluster over gRPC, and knows nothing of a node's inside:
//! no manager, no consensus, no storage. The binary maps [`NodeRunOptions`] onto the node's own options, which keeps the two
//! apart.
//!
//! Exit codes (`cli.md`): 0 done, 1 failed, 2 wrong usage or a missing prerequisite, 3 refused because it would endanger
//! the cluster.

#![forbid(unsafe_code)]

mod address;
mod arguments;
mod atomic_file;
mod bounded_file;
mod certificate;
mod cluster;
#[cfg(test)]
mod cluster_tests;
mod completion;
mod configuration;
mod dev;
mod duration;
mod endpoint;
mod failure;
#[cfg(test)]
mod fake;
mod fleet;
mod image;
mod local;
mod manual;
mod node_status;
mod operator;
mod owner;
mod parameters;
mod recovery_key;
mod shell;
mod unlock;
mod view;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

pub use arguments::{Command, Invocation, LogFormat, NodeRunOptions};
pub use failure::Exit;

use polis_control::NodeFiles;

use arguments::Action;

/// How long the end of a node waits for its error to be read. A terminal or a pipe that is read takes it at once; where nobody
/// reads, it is lost, and the exit code still tells.
const ERROR_DEADLINE: Duration = Duration::from_secs(2);

/// Shows an error of `node run` as all commands show theirs, with its causes and what to do next, and gives its exit code. A
/// standard error that nobody reads does not keep the node from ending.
pub fn show_error(error: &dyn std::error::Error, hint: Option<&str>, exit: Exit) -> ExitCode {
    failure::Failure::with_exit(error, hint, exit).show_within(ERROR_DEADLINE)
}

/// Runs `command` to its end and shows its result or its error. What it does to the files of a node that does not run goes
/// through `files`.
pub fn run(command: Command, files: &dyn NodeFiles) -> ExitCode {
    match run_action(command.action, files) {
        Ok(code) => code,
        Err(failure) => failure.show(),
    }
}

fn run_action(action: Action, files: &dyn NodeFiles) -> Result<ExitCode, failure::Failure> {
    match action {
        Action::NodeStatus(arguments) => node_status::run(&arguments),
        Action::Local(command) => local::run(&command, files),
        Action::Fleet(command) => fleet::run(&command),
        Action::Cluster(arguments) => cluster::run(&arguments, files),
        Action::Consensus(arguments) => cluster::run_consensus(&arguments),
        Action::Certificate(arguments) => certificate::run(&arguments),
        Action::Parameters(arguments) => parameters::run(&arguments),
        Action::Owner(arguments) => owner::run(&arguments),
        Action::RecoveryKey(arguments) => recovery_key::run(&arguments),
        Action::Unlock(arguments) => unlock::run(&arguments),
        Action::Dev(arguments) => dev::run(&arguments),
        Action::Image(arguments) => image::run(&arguments),
        Action::Completion(arguments) => completion::run(&arguments),
        Action::Manual(arguments) => manual::run(&arguments),
    }
}
