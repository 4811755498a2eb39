//! `polis dev`: a cluster on this machine, for trying Polis.
//!
//! Everything lies in one directory:
//!
//! ```text
//! DIR/polis-dev.json     what was made here, and which processes run: the mark of a directory of ours
//! DIR/owner/             configuration directory with the owner key, its certificate and the CA
//! DIR/node-1/node.pb     parameters
//! DIR/node-1/root/       root of the node
//! DIR/node-1/polis.log   its log, over all its starts
//! ```
//!
//! Every command that changes something holds a lock on the directory, so two of them at once do their work one after
//! the other. Every step can be repeated, so one that was interrupted is completed by running it again. A process is
//! recorded before it becomes a node (see [`launch`]), so none is ever forgotten; it is known by its id, its start time
//! and the boot of the machine, so no other is ever mistaken for it.

mod access;
mod address;
mod complete;
mod directory;
mod end;
mod etcd;
mod follow;
mod launch;
mod listing;
mod lock;
mod logs;
mod node_root;
mod process;
mod record;
mod start;
mod up;

use std::process::ExitCode;

use crate::arguments::{DevArguments, DevCommand};
use crate::failure::Failure;

pub(crate) fn run(arguments: &DevArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        DevCommand::Up(arguments) => up::run(arguments),
        DevCommand::Status { directory, output } => listing::status(directory, *output),
        DevCommand::Add(arguments) => up::add(arguments),
        DevCommand::Env(directory) => listing::environment(directory),
        DevCommand::Stop(arguments) => end::stop(arguments),
        DevCommand::Start(arguments) => start::run(arguments),
        DevCommand::Kill(arguments) => end::kill(arguments),
        DevCommand::Logs(arguments) => logs::run(arguments),
        DevCommand::Down { directory, purge } => end::down(directory, *purge),
        DevCommand::Launch(arguments) => launch::run(arguments),
    }
}
