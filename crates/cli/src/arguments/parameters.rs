//! `polis parameters`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{ConnectionArguments, OutputFormat};

#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Example:\n  polis parameters bootstrap --owner-key owner-key.pem -o node.pb && polis parameters show node.pb"
)]
pub(crate) struct ParametersArguments {
    #[command(subcommand)]
    pub(crate) command: ParametersCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ParametersCommand {
    Bootstrap(BootstrapArguments),
    Register(RegisterArguments),
    Show(ShowArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Make the file that tells a machine to create a cluster",
    long_about = "Make the NodeParameters file that tells a machine to create a cluster.\n\n\
        The defaults are the strictest: a TPM is required and storage is encrypted and authenticated. Only the public half \
        of the owner key enters the file, so it holds no secret.",
    after_help = "Example:\n  \
        polis owner create\n  \
        polis parameters bootstrap --owner-key ~/.config/metroctl/owner-key.pem \\\n      \
        --storage-security insecure --tpm-mode disabled --label site=lab -o node.pb\n\n\
        A node that cannot do what its parameters ask refuses to start, and says so."
)]
pub(crate) struct BootstrapArguments {
    /// PEM file of the owner key, as `polis owner create` makes it
    #[arg(long, value_name = "FILE")]
    pub(crate) owner_key: PathBuf,
    /// Protection of data that the cluster asks of its nodes
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    pub(crate) storage_security: StorageSecurity,
    /// Use of TPMs that the cluster asks of its nodes
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(crate) tpm_mode: TpmUse,
    /// Domain of the cluster; without it cluster.internal
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) cluster_domain: String,
    /// A label of the node, KEY=VALUE; may be given several times
    #[arg(long = "label", value_name = "K=V")]
    pub(crate) labels: Vec<String>,
    /// Public half of the cluster's recovery key, as `polis recovery-key create` makes it; written to polis.pb beside the output, which
    /// belongs beside the parameters wherever they go
    #[arg(long, value_name = "FILE")]
    pub(crate) recovery_key: Option<PathBuf>,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Replace the file if it is there with another content
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Make the file that tells a machine to ask a cluster for admission",
    long_about = "Make the NodeParameters file that tells a machine to ask a cluster for admission.\n\n\
        The addresses of the cluster, its CA and its register ticket are fetched as the owner. The file holds the ticket, \
        so it is readable for you only; whoever has it can ask for admission, but only you can approve.",
    after_help = "Example:\n  \
        polis parameters register --endpoints 192.0.2.10 --label site=lab -o node.pb\n  \
        polis node run --root /var/lib/polis --parameters node.pb      # on the new machine\n  \
        polis node approve"
)]
pub(crate) struct RegisterArguments {
    /// A label of the node, KEY=VALUE; may be given several times
    #[arg(long = "label", value_name = "K=V")]
    pub(crate) labels: Vec<String>,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Replace the file if it is there with another content
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Args)]
#[command(
    about = "Say what is in such a file, and what a node would do with it",
    long_about = "Say what is in a NodeParameters file, and what a node of this build would do with it.\n\n\
        Secrets are not shown. A file that no node would take is an error, with the reason.",
    after_help = "Example:\n  polis parameters show node.pb -o json"
)]
pub(crate) struct ShowArguments {
    /// The NodeParameters file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Form of the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StorageSecurity {
    /// Nodes may do as they can
    Permissive,
    /// Nodes must encrypt
    Encrypted,
    /// Nodes must encrypt and authenticate
    #[default]
    Authenticated,
    /// Nodes must do neither: for tests, and for disks that are protected by other means
    Insecure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TpmUse {
    /// A node without a TPM is refused
    #[default]
    Required,
    /// A TPM is used where there is one
    BestEffort,
    /// TPMs are not used
    Disabled,
}
