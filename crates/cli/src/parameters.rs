//! `polis parameters`.

mod bootstrap;
mod document;
mod own;
mod register;
mod show;

use std::process::ExitCode;

use crate::arguments::{ParametersArguments, ParametersCommand};
use crate::failure::Failure;

pub(crate) use bootstrap::{MODE as BOOTSTRAP_MODE, WriteOutputError, Written, bootstrap_file, write_output};
pub(crate) use register::{MODE as REGISTER_MODE, register_file};

pub(crate) fn run(arguments: &ParametersArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ParametersCommand::Bootstrap(arguments) => bootstrap::run(arguments),
        ParametersCommand::Register(arguments) => register::run(arguments),
        ParametersCommand::Show(arguments) => show::run(arguments),
    }
}
