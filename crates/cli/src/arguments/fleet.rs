//! The commands of `polis node` that ask the cluster about its nodes.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use polis_update::ImageReference;

use super::{ConnectionArguments, OutputFormat};
use crate::duration;
use crate::fleet::Column;

/// How a node is named in commands that change something.
const ID_HELP: &str = "Id of the node; its first digits will do when they fit one node only";

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Nodes to show, by id or the first digits of it; without any all are shown
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Show only nodes for which this CEL expression is true, for example node.state == NODE_STATE_UP
    #[arg(long, value_name = "CEL", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Columns of the table, separated by commas
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', value_parser = Column::parse)]
    pub(crate) columns: Vec<Column>,
    /// Form of the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Args)]
#[command(
    about = "Admit a machine to the cluster",
    long_about = "Admit a machine to the cluster.\n\n\
        Without ID, the machines that wait are shown, with their keys. Compare the key with what the machine itself shows \
        (`polis node status`) before you approve it.",
    after_help = "Examples:\n  polis node approve\n  polis node approve metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
)]
pub(crate) struct ApproveArguments {
    #[arg(value_name = "ID", help = ID_HELP)]
    pub(crate) ids: Vec<String>,
    /// Form of the list
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AddCommand {
    /// Give nodes a role
    #[command(
        long_about = "Give nodes a role.\n\n\
            A node with the role ConsensusMember waits for its turn, learns, and then votes: `polis cluster status` shows \
            how far it is.",
        after_help = "Example:\n  polis node add role ConsensusMember metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Role(RoleArguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RemoveCommand {
    /// Take a role from nodes
    #[command(
        long_about = "Take a role from nodes.\n\n\
            Taking ConsensusMember is refused when the members that are left and answer would not be a quorum (exit code \
            3). A member that is dead for good can be removed: the others decide, it is not asked.",
        after_help = "Example:\n  polis node remove role ConsensusMember metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
    )]
    Role(RoleArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RoleArguments {
    /// The role
    #[arg(value_name = "ROLE", value_enum, ignore_case = true)]
    pub(crate) role: Role,
    #[arg(value_name = "ID", required = true, help = ID_HELP)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// A role, as it is named on the command line and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Role {
    /// Keeps the state of the cluster
    ConsensusMember,
    /// Runs the control plane of Kubernetes; a ConsensusMember already
    KubernetesController,
    /// Runs pods
    KubernetesWorker,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ConsensusMember => "ConsensusMember",
            Self::KubernetesController => "KubernetesController",
            Self::KubernetesWorker => "KubernetesWorker",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
    /// Set and remove labels of a node
    #[command(
        after_help = "Example:\n  polis node set label metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877 site=lab rack-"
    )]
    Label {
        #[arg(value_name = "ID", help = ID_HELP)]
        id: String,
        /// KEY=VALUE sets a label, KEY- removes it
        #[arg(value_name = "K=V|K-", required = true)]
        labels: Vec<String>,
        #[command(flatten)]
        connection: ConnectionArguments,
    },
}

#[derive(Debug, Args)]
#[command(
    about = "Have a node leave the cluster for good",
    long_about = "Have a node leave the cluster for good: it erases its keys, reports that it has, and stops.\n\n\
        What it held cannot be read any more, so a node with roles is refused: take them from it first. Then delete it. A \
        node that is dead for good cannot be decommissioned, but deleted.",
    after_help = "Example:\n  polis node decommission metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877 --wait"
)]
pub(crate) struct DecommissionArguments {
    #[arg(value_name = "ID", help = ID_HELP)]
    pub(crate) id: String,
    /// Wait until the node has done it
    #[arg(long)]
    pub(crate) wait: bool,
    /// Longest time to wait for the node
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub(crate) wait_timeout: Duration,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Args)]
#[command(
    about = "Remove a node from the cluster's records",
    long_about = "Remove a node from the cluster's records and revoke its certificate.\n\n\
        A node that still has roles, or that was not decommissioned, is refused (exit code 3) unless the flag for it is \
        given.",
    after_help = "Example:\n  polis node delete metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877"
)]
pub(crate) struct DeleteArguments {
    #[arg(value_name = "ID", help = ID_HELP)]
    pub(crate) id: String,
    /// Delete it although it has roles
    #[arg(long)]
    pub(crate) bypass_has_roles: bool,
    /// Delete it although it was not decommissioned: its keys are still on its disk
    #[arg(long)]
    pub(crate) bypass_not_decommissioned: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

#[derive(Debug, Args)]
#[command(
    about = "Show the log of a node",
    long_about = "Show the log of a node, asked from the node itself (port 7839).",
    after_help = "Examples:\n  \
        polis node logs metropolis-5c1f --backlog 50 -f\n  \
        polis node logs metropolis-5c1f --dn root.manager --severity warning"
)]
pub(crate) struct FleetLogsArguments {
    /// Id of the node, or the first digits of it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Show what was logged under this distinguished name, and below it
    #[arg(long, value_name = "DN", default_value = "root")]
    pub(crate) dn: String,
    /// Leave out what was logged below that name
    #[arg(short, long)]
    pub(crate) exact: bool,
    /// Number of last entries to begin with, or "all"
    #[arg(long, value_name = "N", default_value = "1000", value_parser = Backlog::parse)]
    pub(crate) backlog: Backlog,
    /// Go on with new entries until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only lines as processes wrote them, or only entries with a severity
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "severity")]
    pub(crate) only: Option<LogKind>,
    /// Only entries of at least this severity
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) severity: Option<LogSeverity>,
    /// Form of the entries; json is one object a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: LogOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// Number of entries from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backlog {
    None,
    Last(u32),
    All,
}

impl Backlog {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "all" | "-1" => Ok(Self::All),
            "0" | "none" => Ok(Self::None),
            _ => text.parse().map(Self::Last).map_err(|_| "write a number of entries, or all".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogKind {
    Raw,
    Leveled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogSeverity {
    Info,
    Warning,
    Error,
    Fatal,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogOutput {
    /// For reading
    #[default]
    Text,
    /// For programs: one JSON object a line
    Json,
}

#[derive(Debug, Args)]
#[command(
    about = "Show the metrics of a node",
    long_about = "Show the metrics of a node, in the text form of Prometheus, asked from the node itself (port 7840).",
    after_help = "Example:\n  polis node metrics metropolis-5c1f core"
)]
pub(crate) struct MetricsArguments {
    /// Id of the node, or the first digits of it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Whose metrics: node (or core) or etcd
    #[arg(value_name = "EXPORTER")]
    pub(crate) exporter: String,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// Arguments of `rekey` and `reseal`.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    #[arg(value_name = "ID", help = ID_HELP)]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// Arguments of `reboot`.
#[derive(Debug, Args)]
pub(crate) struct RebootArguments {
    #[command(flatten)]
    pub(crate) node: PowerArguments,
    /// Start the image that the machine had before; it is tried once, as an update is
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Stop in the menu of the firmware, where somebody has to go on
    #[arg(long, conflicts_with_all = ["rollback", "kexec"])]
    pub(crate) firmware: bool,
    /// Go straight into the next kernel, without the firmware, where the machine can do that
    #[arg(long)]
    pub(crate) kexec: bool,
}

/// When an image that was installed is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationMode {
    /// Restart the machine
    #[default]
    Reboot,
    /// Go straight into the new kernel, without the firmware, where the machine can do that
    Kexec,
    /// Only install it: it is tried at the next restart
    None,
}

#[derive(Debug, Args)]
#[command(
    about = "Bring another image onto nodes that are machines",
    long_about = "Bring another image onto nodes that are machines, one after the other.\n\n\
        Each node fetches and installs the image beside its work and is then restarted, if the cluster can do without it at that \
        moment: never more than --max-unavailable nodes are down, the members that stay are a quorum, and the leader is the last. A \
        node that does not come back healthy with the image ends the update; a machine goes back by itself to the image before when \
        the new one does not prove itself. The command can be repeated: nodes that run the image already are left alone. It exits \
        with 3 when going on would endanger the cluster.",
    after_help = "Examples:\n  \
        polis node update all --image-ref registry.example/polis@sha256:...\n  \
        polis node update metropolis-5c1f --image-ref http://192.0.2.7:8080/polis@sha256:... --activation-mode none"
)]
pub(crate) struct UpdateNodesArguments {
    /// Ids of nodes, or the first digits of them; or `all`
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// The image: [http://|https://]HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGEST, as `polis image artifact` shows it
    #[arg(long, value_name = "REF")]
    pub(crate) image_ref: ImageReference,
    /// When the image is started
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(crate) activation_mode: ActivationMode,
    /// Most nodes that may be down at the same time, those counted that are down already
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_unavailable: u16,
    /// A node that is left alone; may be given several times
    #[arg(long, value_name = "ID")]
    pub(crate) exclude: Vec<String>,
    /// Restart members although the cluster loses its quorum until they are back
    #[arg(long)]
    pub(crate) bypass_quorum: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// Arguments of `poweroff`, and of `reboot` with others.
#[derive(Debug, Args)]
pub(crate) struct PowerArguments {
    #[arg(value_name = "ID", help = ID_HELP)]
    pub(crate) id: String,
    /// Do it although the cluster loses its quorum until the node is back
    #[arg(long)]
    pub(crate) bypass_quorum: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}
