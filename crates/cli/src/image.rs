//! `polis image`: disk images of machines.

mod artifact;
mod build;
mod install;

use std::process::ExitCode;

use crate::arguments::{ImageArguments, ImageCommand};
use crate::failure::Failure;

pub(crate) fn run(arguments: &ImageArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ImageCommand::Artifact(arguments) => artifact::run(arguments),
        ImageCommand::Build(arguments) => build::run(arguments),
        ImageCommand::Install(arguments) => install::run(arguments),
    }
}
