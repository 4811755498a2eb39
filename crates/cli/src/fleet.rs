//! The commands of `polis node` that look after the nodes of a cluster.

mod approve;
mod columns;
mod keys;
mod labels;
mod list;
mod log_line;
mod logs;
mod metrics;
mod node_document;
mod power;
mod reach;
mod removal;
mod roles;
mod select;
mod update;

use std::process::ExitCode;

use crate::arguments::{AddCommand, FleetCommand, RemoveCommand, SetCommand};
use crate::failure::Failure;

pub(crate) use approve::approve;
pub(crate) use columns::{Column, age};
pub(crate) use list::get as get_nodes;
pub(crate) use node_document::NodeDocument;
pub(crate) use roles::set as set_role;

pub(crate) fn run(command: &FleetCommand) -> Result<ExitCode, Failure> {
    match command {
        FleetCommand::List(arguments) => list::run(arguments, "node list", Column::SHORT),
        FleetCommand::Describe(arguments) => list::run(arguments, "node describe", Column::METROCTL),
        FleetCommand::Approve(arguments) => approve::run(arguments),
        FleetCommand::Add(AddCommand::Role(arguments)) => roles::run(arguments, true),
        FleetCommand::Remove(RemoveCommand::Role(arguments)) => roles::run(arguments, false),
        FleetCommand::Set(SetCommand::Label { id, labels, connection }) => labels::run(id, labels, connection),
        FleetCommand::Decommission(arguments) => removal::decommission(arguments),
        FleetCommand::Delete(arguments) => removal::delete(arguments),
        FleetCommand::Logs(arguments) => logs::run(arguments),
        FleetCommand::Metrics(arguments) => metrics::run(arguments),
        FleetCommand::Reboot(arguments) => power::reboot(arguments),
        FleetCommand::Poweroff(arguments) => power::power_off(arguments),
        FleetCommand::Update(arguments) => update::run(arguments),
        FleetCommand::Rekey(arguments) => keys::rekey(arguments),
        FleetCommand::Reseal(arguments) => keys::reseal(arguments),
    }
}
