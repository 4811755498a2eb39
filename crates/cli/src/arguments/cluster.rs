//! `polis cluster` and `polis consensus`.

use std::path::PathBuf;

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
    ConfirmTwo(ConfirmTwoArguments),
    RecoveryKey(ClusterRecoveryKeyArguments),
    Recover(RecoverArguments),
    Snapshot(SnapshotArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Snapshots of the cluster's state: save one, or look at those that there are",
    arg_required_else_help = true,
    after_help = "Example:\n  polis cluster snapshot save cluster.snapshot"
)]
pub(crate) struct SnapshotArguments {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save a snapshot of what is now in a file on this machine
    #[command(
        long_about = "Save a snapshot of what is now in a file on this machine.\n\n\
            A consensus member takes it, checks it, and encrypts it to the recovery key of the cluster: only its words open it. \
            Without a recovery key it leaves the cluster with --plaintext alone; whoever has such a file has the cluster, its keys \
            included. The file is there whole, with the hash that the member has told, or not at all, and one that is there \
            stays. `polis cluster recover --snapshot FILE` makes a cluster of it.",
        after_help = "Example:\n  polis cluster snapshot save /backup/cluster-$(date +%F).snapshot"
    )]
    Save {
        /// The file to be made
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Do not encrypt it
        #[arg(long)]
        plaintext: bool,
        #[command(flatten)]
        connection: ConnectionArguments,
    },
    /// The newest snapshot of each member, or what a file is a snapshot of
    #[command(
        long_about = "The newest snapshot of each member, or what a file is a snapshot of.\n\n\
            Members take one every hour by themselves. VERIFIED says whether it has been restored once for trial, besides the check \
            of its hash. A file is read as far as that goes without the recovery key.",
        after_help = "Example:\n  polis cluster snapshot status\n  polis cluster snapshot status cluster.snapshot -o json"
    )]
    Status {
        /// Look at this file, and ask no cluster
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        show: ShowClusterArguments,
    },
}

#[derive(Debug, Args)]
#[command(
    about = "Make a cluster of one of what one member has left, after the others are gone for good",
    long_about = "Make a cluster of one of what one member has left, after the others are gone for good.\n\n\
        For a cluster that has lost its quorum: a majority of the consensus members was destroyed. Run it on a machine whose node \
        was one, while that node does not run. It asks the others first, and refuses when they have the quorum. It works on copies; \
        the last step puts the new data in the place of the old ones, which are kept.\n\n\
        The node is the same and so is the cluster: its CA, its owner, its nodes. Other nodes that are left join by themselves once \
        they reach this one, and are given the role of a consensus member again with `polis node add role`. What was acknowledged in the last \
        moments before the loss, and had not reached this member's disk, is gone.\n\n\
        Should a majority of the others be alive after all, out of reach from here, it goes on as a second cluster: this command \
        cannot know. When the two reach each other again the majority lives on, does not follow this node, and both say in their \
        status and in `polis cluster health` that there are two (condition cluster-divided) and what to do.\n\n\
        With --snapshot a machine without a node does as well, when no member is left: give a root that is empty or not there yet. It gets a \
        new node, which keeps its data as the cluster asks for it; no parameters are needed. All nodes of before are nodes still, and none of \
        them is a member. Start the node at whatever address the machine has, and let others join as usual. Delete the nodes that are \
        gone. One that registered after the snapshot was taken is unknown now: reset it, and let it register again. Cut off, the same \
        command begins anew.",
    after_help = "Example:\n  polis cluster recover --root /var/lib/polis --others-are-gone\n  \
        polis cluster recover --root /var/lib/polis --snapshot cluster.snapshot --recovery - --others-are-gone && \
        polis node run --root /var/lib/polis"
)]
pub(crate) struct RecoverArguments {
    /// Root directory of the node that is left, which must not run; with --snapshot also one that is empty or not there
    #[arg(long, value_name = "DIR")]
    pub(crate) root: PathBuf,
    /// The device with the node's data, if it has one for them
    #[arg(long, value_name = "DEV")]
    pub(crate) data_device: Option<PathBuf>,
    /// Use this snapshot instead of what the node's own member has
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// The words of the recovery key, for a snapshot that is encrypted and for encrypted data whose key the others had: a file, or - to be
    /// asked for them
    #[arg(long, value_name = "FILE|-")]
    pub(crate) recovery: Option<PathBuf>,
    /// The other members do not answer, and that is because they are gone for good
    #[arg(long)]
    pub(crate) others_are_gone: bool,
    /// The etcd program; without it, it is looked for in PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) etcd: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Form of the report
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
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
#[command(
    about = "Confirm that a cluster of two is to stay one, so that neither comes back without the other",
    long_about = "Confirm that a cluster of two is to stay one, so that neither comes back without the other.\n\n\
        Members that encrypt their data come back after a power failure with the help of the others. Of two, each keeps a copy of \
        its own key beside its seal instead, until there is a third, so that the loss of one is not the loss of both. Once this is \
        confirmed neither keeps a copy: who steals one machine opens nothing, and when one of the two is lost the other needs the \
        recovery key to open its data. So the cluster must have one.",
    after_help = "Example:\n  polis cluster recovery-key set recovery.pem && polis cluster confirm-two"
)]
pub(crate) struct ConfirmTwoArguments {
    /// Take it back: both keep copies of their keys again
    #[arg(long)]
    pub(crate) withdraw: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Args)]
#[command(
    about = "The recovery key of the cluster",
    arg_required_else_help = true,
    after_help = "Example:\n  polis cluster recovery-key set recovery.pem"
)]
pub(crate) struct ClusterRecoveryKeyArguments {
    #[command(subcommand)]
    pub(crate) command: ClusterRecoveryKeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterRecoveryKeyCommand {
    /// Give the cluster a recovery key, or another one
    #[command(
        long_about = "Give the cluster a recovery key, or another one.\n\n\
            Only the public half is sent. Each member then seals what opens it to this key, and snapshots leave their nodes encrypted \
            to it. What was sealed to a key before can be opened with the words of that key still: keep them as long as copies of it \
            may exist.",
        after_help = "Example:\n  \
            polis recovery-key create -o recovery.pem && polis cluster recovery-key set recovery.pem"
    )]
    Set {
        /// The public half, as `polis recovery-key create` makes it
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        connection: ConnectionArguments,
    },
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
