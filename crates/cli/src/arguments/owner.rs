//! `polis owner`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = "Example:\n  polis owner create")]
pub(crate) struct OwnerArguments {
    #[command(subcommand)]
    pub(crate) command: OwnerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OwnerCommand {
    /// Make the owner key, unless there is one
    #[command(
        long_about = "Make the owner key, unless there is one.\n\n\
            Whoever holds the key can take ownership of a cluster that was created with its public half. A key that is \
            there is never overwritten.",
        after_help = "Example:\n  polis owner create --config ./keys"
    )]
    Create {
        /// Configuration directory; shared with metroctl. Without it $XDG_CONFIG_HOME/metroctl, else ~/.config/metroctl
        #[arg(long, value_name = "DIR", env = "POLIS_CONFIG")]
        config: Option<PathBuf>,
    },
}
