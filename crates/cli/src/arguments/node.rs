//! `polis node`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use polis_control::{NodeState, Peer};

use super::{
    AddCommand, ApproveArguments, DecommissionArguments, DeleteArguments, FleetLogsArguments, KeyArguments,
    ListArguments, MetricsArguments, OutputFormat, PowerArguments, RebootArguments, RemoveCommand, SetCommand,
    UpdateNodesArguments,
};
use crate::local::LocalCommand;
use crate::{address, duration};

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    Run(NodeRunOptions),
    Status(NodeStatusArguments),
    #[command(flatten)]
    Local(LocalCommand),
    #[command(flatten)]
    Fleet(FleetCommand),
}

/// Commands that ask the cluster, or a node over the network.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// The nodes of the cluster, and how they are
    #[command(after_help = "Examples:\n  \
        polis node list --endpoints 192.0.2.10\n  \
        polis node list --filter 'node.health == HEALTH_HEARTBEAT_TIMEOUT' --columns id,address,heartbeat")]
    List(ListArguments),
    /// The nodes of the cluster with everything that the cluster knows of them
    #[command(after_help = "Example:\n  polis node describe metropolis-5c1f -o yaml")]
    Describe(ListArguments),
    Approve(ApproveArguments),
    /// Give nodes something
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example:\n  polis node add role ConsensusMember metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Add(AddCommand),
    /// Take something from nodes
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example:\n  polis node remove role ConsensusMember metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Remove(RemoveCommand),
    /// Change something of a node
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example:\n  polis node set label metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877 site=lab rack-"
    )]
    Set(SetCommand),
    Decommission(DecommissionArguments),
    Delete(DeleteArguments),
    Logs(FleetLogsArguments),
    Metrics(MetricsArguments),
    /// Restart a node
    #[command(
        long_about = "Restart a node. A node that is a daemon restarts itself, one that is a machine restarts the machine.\n\n\
            It is refused when the consensus members that stay and answer would not be a quorum (exit code 3).",
        after_help = "Examples:\n  polis node reboot metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877\n  \
            polis node reboot metropolis-5c1f --rollback"
    )]
    Reboot(RebootArguments),
    /// Stop a node
    #[command(
        long_about = "Stop a node. A node that is a daemon ends, one that is a machine is switched off; somebody has to \
            start it again on the spot.\n\n\
            It is refused when the consensus members that stay and answer would not be a quorum (exit code 3).",
        after_help = "Example:\n  polis node poweroff metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Poweroff(PowerArguments),
    Update(UpdateNodesArguments),
    /// Replace the cluster's half of the key of a node's encrypted data
    #[command(
        long_about = "Replace the cluster's half of the key of a node's encrypted data, while the node goes on.\n\n\
            It returns when the old key opens nothing any more. Whatever is interrupted, some key that is known opens the data, and \
            the node goes on with the change by itself. It does not encrypt the data anew: who has a copy of the disk and of the ESP \
            from before can open that copy for ever.",
        after_help = "Example:\n  polis node rekey metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Rekey(KeyArguments),
    /// Bind the seal of a node's keys to the present state of its machine
    #[command(
        long_about = "Bind the seal of a node's keys to the present state of its machine.\n\n\
            A TPM gives the keys out only in the boot state (Secure Boot and its keys) in which they were sealed. When that has \
            changed on purpose and `polis node status` says that the seal would not open, this renews it.",
        after_help = "Example:\n  polis node reseal metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Reseal(KeyArguments),
}

/// Options of `polis node run`.
///
/// A fault that may pass (no address yet, a taken port, a full disk) is a condition: the node stays and goes on once it is
/// cured. What cannot pass ends it with exit code 1 and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(
    about = "Run the node until SIGTERM or SIGINT",
    long_about = "Run the node until SIGTERM or SIGINT.\n\n\
        A fault that may pass (no address yet, a taken port, a full disk) is a condition: the node stays, shows it in \
        `polis node status`, and goes on once it is cured. What cannot pass ends the node with exit code 1 and the reason.",
    after_help = "Example:\n  polis node run --root /var/lib/polis --parameters node.pb --address 192.0.2.10\n\n\
        Ports on the address: 7834 consensus, 7835 curator, 7836 unlock, 7839 node management, 7840 metrics."
)]
pub struct NodeRunOptions {
    /// Directory that holds everything of the node; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
    /// NodeParameters file for the first start; a node that has a cluster ignores it
    #[arg(long, value_name = "FILE")]
    pub parameters: Option<PathBuf>,
    /// Address to serve on; without it that of the default route
    #[arg(long, value_name = "IP", value_parser = address::parse)]
    pub address: Option<IpAddr>,
    /// The etcd binary; without it the one in PATH
    #[arg(long, value_name = "PATH")]
    pub etcd: Option<PathBuf>,
    /// Accept a version of etcd that Polis was not tested with
    #[arg(long)]
    pub etcd_unsafe_version: bool,
    /// Device or partition to keep the data on, which belongs to the node alone; without it they are kept below the root
    #[arg(long, value_name = "DEV")]
    pub data_device: Option<PathBuf>,
    /// The program that speaks to the TPM; without it polis-tpm beside this program, or in PATH
    #[arg(long, value_name = "PATH")]
    pub tpm_helper: Option<PathBuf>,
    /// Where another node is, for when all have moved at once; may be given several times
    #[arg(long = "peer", value_name = "ID=ADDR")]
    pub peers: Vec<Peer>,
    /// Form of the log on the standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub log: LogFormat,
}

/// Form of a node's log on its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for reading; coloured on a terminal
    #[default]
    Console,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Args)]
#[command(
    about = "What the running node says about itself",
    long_about = "What the running node says about itself, asked over DIR/ephemeral/control.sock.\n\n\
        When no node runs there, the last state that one wrote down is shown, and the exit code is 1.",
    after_help = "Examples:\n  \
        polis node status --root /var/lib/polis\n  \
        polis node status --root /var/lib/polis --wait Running --timeout 2m\n  \
        polis node status --root /var/lib/polis -o json"
)]
pub(crate) struct NodeStatusArguments {
    /// Root directory of the node
    #[arg(long, value_name = "DIR", env = "POLIS_ROOT")]
    pub(crate) root: PathBuf,
    /// Form of the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
    /// Wait until the node is in this state, or in Running when that lies behind it; also for the node to start
    #[arg(long, value_name = "STATE")]
    pub(crate) wait: Option<NodeState>,
    /// Longest time to wait for an answer or for the state, for example 90s or 2m
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}
