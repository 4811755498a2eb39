//! `polis parameters`.

mod bootstrap;
mod document;
mod show;

use std::process::ExitCode;

use crate::arguments::{ParametersArguments, ParametersCommand};
use crate::failure::Failure;

pub(crate) use bootstrap::{bootstrap_file, write_output};

pub(crate) fn run(arguments: &ParametersArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ParametersCommand::Bootstrap(arguments) => bootstrap::run(arguments),
        ParametersCommand::Show(arguments) => show::run(arguments),
    }
}
