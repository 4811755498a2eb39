//! `polis owner`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ConfigurationArguments, ConnectionArguments};

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
    Create(ConfigurationArguments),
    /// Give the cluster a new owner key, and revoke the present one
    #[command(
        long_about = "Give the cluster a new owner key, and revoke the present one.\n\n\
            A new key is made and kept beside the present one until the cluster has taken it; then it takes its place. A \
            rotation that was interrupted is completed by running the command again.",
        after_help = "Example:\n  polis owner rotate --endpoints 192.0.2.10"
    )]
    Rotate(ConnectionArguments),
    Replace(ReplaceArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Break glass: name a new owner when the owner key is lost",
    long_about = "Break glass: name a new owner when the owner key is lost.\n\n\
        Run it on a node, as the user that the node runs as. Once it was run with the same key on a quorum of the consensus \
        members, the cluster belongs to that key and the certificate of the old one is revoked.",
    after_help = "Example:\n  \
        polis owner create --config ./new && polis owner replace --root /var/lib/polis --owner-key ./new/owner-key.pem"
)]
pub(crate) struct ReplaceArguments {
    /// Root directory of the running node
    #[arg(long, value_name = "DIR", env = "POLIS_ROOT")]
    pub(crate) root: PathBuf,
    /// PEM file of the new owner key, as `polis owner create` makes it; only its public half is used
    #[arg(long, value_name = "FILE")]
    pub(crate) owner_key: PathBuf,
}
