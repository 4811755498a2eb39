//! `polis cluster` and `polis consensus`.

use clap::{Args, Subcommand};

use super::{ConnectionArguments, OutputFormat};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = "Example:\n  polis cluster health --endpoints 192.0.2.10")]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

/// A question about the cluster.
#[derive(Debug, Args)]
pub(crate) struct ShowClusterArguments {
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
    /// Form of the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Get the certificate with which the owner key rules the cluster
    #[command(
        long_about = "Get the certificate with which the owner key rules the cluster.\n\n\
            The cluster gives it to whoever holds the key that it was created with (`polis owner create`). It is kept in \
            the configuration directory. The command can be repeated: it gives the same certificate again.",
        after_help = "Example:\n  polis cluster takeownership --endpoints 192.0.2.10"
    )]
    Takeownership(ConnectionArguments),
    /// What the cluster is: domain, CA, policies, directory
    #[command(after_help = "Example:\n  polis cluster info --endpoints 192.0.2.10")]
    Info(ShowClusterArguments),
    /// What the cluster is doing: leader, members, joins under way, epochs
    #[command(after_help = "Example:\n  polis cluster status -o json")]
    Status(ShowClusterArguments),
    /// What is wrong with the cluster; the exit code tells
    #[command(
        long_about = "What is wrong with the cluster: all checks, at the same time, on every node.\n\n\
            No check waits for another or is left out because another has failed. Each line names the node, what was \
            found and why, what it means for the quorum, and what to do next. The exit code is 1 when there is an error; \
            warnings and notices alone leave it at 0.",
        after_help = "Example:\n  polis cluster health --endpoints 192.0.2.10 --endpoints 192.0.2.11"
    )]
    Health(ShowClusterArguments),
    Configure(ConfigureArguments),
    Ticket(TicketArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Read or change the configuration of the cluster",
    arg_required_else_help = true,
    after_help = "Example:\n  polis cluster configure set kubernetes.node_labels_to_synchronize '^site$' '^rack$'"
)]
pub(crate) struct ConfigureArguments {
    #[command(subcommand)]
    pub(crate) command: ConfigureCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigureCommand {
    /// Show one value, or all of them
    #[command(after_help = "Example:\n  polis cluster configure get kubernetes.node_labels_to_synchronize")]
    Get {
        /// Name of the value; without it all are shown
        #[arg(value_name = "KEY")]
        key: Option<String>,
        #[command(flatten)]
        show: ShowClusterArguments,
    },
    /// Change one value
    #[command(
        long_about = "Change one value.\n\n\
            What can be changed is kubernetes.node_labels_to_synchronize: regular expressions of the labels that \
            Kubernetes is to see. All other values are decided when the cluster is created.",
        after_help = "Example:\n  polis cluster configure set kubernetes.node_labels_to_synchronize '^site$'"
    )]
    Set {
        /// Name of the value
        #[arg(value_name = "KEY")]
        key: String,
        /// The new value; none empties a list
        #[arg(value_name = "VALUE")]
        values: Vec<String>,
        #[command(flatten)]
        show: ShowClusterArguments,
    },
}

#[derive(Debug, Args)]
#[command(
    about = "The ticket with which machines ask for admission",
    arg_required_else_help = true,
    after_help = "Example:\n  polis cluster ticket rotate"
)]
pub(crate) struct TicketArguments {
    #[command(subcommand)]
    pub(crate) command: TicketCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TicketCommand {
    /// Show the ticket. It is a secret
    #[command(after_help = "Example:\n  polis cluster ticket show -o json")]
    Show(ShowClusterArguments),
    /// Make a new ticket; the old one is refused from then on
    #[command(
        long_about = "Make a new ticket; the old one is refused from then on.\n\n\
            Nodes that are members already do not need it. Machines that still wait with parameters made before need new \
            ones: polis parameters register.",
        after_help = "Example:\n  polis cluster ticket rotate"
    )]
    Rotate(ShowClusterArguments),
}

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = "Example:\n  polis consensus members")]
pub(crate) struct ConsensusArguments {
    #[command(subcommand)]
    pub(crate) command: ConsensusCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConsensusCommand {
    /// The members that keep the state of the cluster
    #[command(after_help = "Example:\n  polis consensus members -o json")]
    Members(ShowClusterArguments),
}
