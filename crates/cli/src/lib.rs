//! The commands of the `polis` binary: what a person types, and what they see.
//!
//! The crate is the edge of the program. It parses the command line ([`Invocation::parse`]), runs every command but
//! `node run` itself ([`run`]), and shows errors in one style: what failed, why, and what to do next. It asks a running
//! node over its control socket and knows nothing of a node's inside: no manager, no consensus, no storage. The binary
//! maps [`NodeRunOptions`] onto the node's own options, which keeps the two apart.
//!
//! Exit codes (`cli.md`): 0 done, 1 failed, 2 wrong usage or a missing prerequisite, 3 refused because it would endanger
//! the cluster.

#![forbid(unsafe_code)]

mod address;
mod arguments;
mod atomic_file;
mod bounded_file;
mod completion;
mod dev;
mod duration;
mod failure;
mod manual;
mod node_status;
mod owner;
mod parameters;
mod shell;
mod view;

use std::process::ExitCode;
use std::time::Duration;

pub use arguments::{Command, Invocation, LogFormat, NodeRunOptions};
pub use failure::Exit;

use arguments::Action;

/// How long the end of a node waits for its error to be read. A terminal or a pipe that is read takes it at once; where nobody
/// reads, it is lost, and the exit code still tells.
const ERROR_DEADLINE: Duration = Duration::from_secs(2);

/// Shows an error of `node run` as all commands show theirs, with its causes and what to do next, and gives its exit code. A
/// standard error that nobody reads does not keep the node from ending.
pub fn show_error(error: &dyn std::error::Error, hint: Option<&str>, exit: Exit) -> ExitCode {
    failure::Failure::with_exit(error, hint, exit).show_within(ERROR_DEADLINE)
}

/// Runs `command` to its end and shows its result or its error.
pub fn run(command: Command) -> ExitCode {
    let result = match command.action {
        Action::NodeStatus(arguments) => node_status::run(&arguments),
        Action::Parameters(arguments) => parameters::run(&arguments),
        Action::Owner(arguments) => owner::run(&arguments),
        Action::Dev(arguments) => dev::run(&arguments),
        Action::Completion(arguments) => completion::run(&arguments),
        Action::Manual(arguments) => manual::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.show(),
    }
}
