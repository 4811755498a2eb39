//! `polis completion`.

use std::process::ExitCode;

use crate::arguments::{self, CompletionArguments, Shell};
use crate::failure::Failure;
use crate::view::print;

pub(crate) fn run(arguments: &CompletionArguments) -> Result<ExitCode, Failure> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::definition(), "polis", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
