//! `polis cluster` and `polis consensus`: what a cluster is, what it does, what is wrong with it.

mod configure;
mod confirm_two;
mod health;
mod info;
mod info_document;
mod keys_document;
mod ownership;
mod recover;
mod recovery_key;
mod snapshot;
mod status;
mod status_document;

use std::process::ExitCode;

use polis_control::NodeFiles;

use crate::arguments::{ClusterArguments, ClusterCommand, ConsensusArguments, ConsensusCommand};
use crate::failure::Failure;

pub(crate) use info::{get as get_info, ticket};
use info_document::InfoDocument;
#[cfg(test)]
pub(crate) use keys_document::{ColdStartDocument, UnfinishedRemovalDocument};
pub(crate) use ownership::take as take_ownership;
pub(crate) use status::get as get_status;
pub(crate) use status_document::{ChangeDocument, MemberDocument, StatusDocument};
#[cfg(test)]
pub(crate) use status_document::{DecommissionDocument, OtherProcessDocument, QueuedDocument};

pub(crate) fn run(arguments: &ClusterArguments, files: &dyn NodeFiles) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ClusterCommand::Takeownership(arguments) => ownership::run(arguments),
        ClusterCommand::Info(arguments) => info::run(arguments),
        ClusterCommand::Status(arguments) => status::run(arguments),
        ClusterCommand::Health(arguments) => health::run(arguments),
        ClusterCommand::Configure(arguments) => configure::run(&arguments.command),
        ClusterCommand::Ticket(arguments) => info::run_ticket(&arguments.command),
        ClusterCommand::ConfirmTwo(arguments) => confirm_two::run(arguments),
        ClusterCommand::RecoveryKey(arguments) => recovery_key::run(&arguments.command),
        ClusterCommand::Recover(arguments) => recover::run(arguments, files),
        ClusterCommand::Snapshot(arguments) => snapshot::run(&arguments.command),
    }
}

pub(crate) fn run_consensus(arguments: &ConsensusArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ConsensusCommand::Members(arguments) => status::run_members(arguments),
    }
}
