//! `polis cluster snapshot`.

mod save;
mod status;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use crate::arguments::SnapshotCommand;
use crate::failure::Failure;

pub(super) fn run(command: &SnapshotCommand) -> Result<ExitCode, Failure> {
    match command {
        SnapshotCommand::Save { file, plaintext, connection } => save::run(file, *plaintext, connection),
        SnapshotCommand::Status { file: Some(file), show } => status::of_file(file, show.output),
        SnapshotCommand::Status { file: None, show } => status::of_members(show),
    }
}
