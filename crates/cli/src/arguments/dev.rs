//! `polis dev`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::OutputFormat;
use crate::{address, duration};

#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    about = "A cluster on this machine, for trying Polis",
    long_about = "A cluster on this machine, for trying Polis.\n\n\
        It needs no root. Its nodes are ordinary processes that stay until `polis dev down`, or until the machine is \
        restarted; `polis dev up` starts the same nodes again.",
    after_help = "Examples:\n  \
        polis dev up                 start it, or what is missing of it\n  \
        polis dev kill 1             end node 1 with SIGKILL\n  \
        polis dev start 1            the same node comes back\n  \
        polis dev add                one node more\n  \
        polis dev down --purge       stop it and forget everything"
)]
pub(crate) struct DevArguments {
    #[command(subcommand)]
    pub(crate) command: DevCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    Up(DevUpArguments),
    /// The nodes and what they do
    #[command(after_help = "Example:\n  polis dev status -o json")]
    Status {
        #[command(flatten)]
        directory: DevDirectory,
        /// Form of the answer
        #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
        output: OutputFormat,
    },
    /// Print shell exports for working with the cluster
    #[command(after_help = "Example:\n  eval \"$(polis dev env)\" && polis node list")]
    Env(DevDirectory),
    /// Add a node to the cluster, and make it a member
    #[command(after_help = "Example:\n  polis dev add")]
    Add(DevAddArguments),
    /// Stop a node in an orderly way
    #[command(after_help = "Example:\n  polis dev stop 1")]
    Stop(DevNodeArguments),
    /// Start a node again
    #[command(after_help = "Example:\n  polis dev start 1")]
    Start(DevNodeArguments),
    /// End a node with SIGKILL, as a crash would
    #[command(after_help = "Example:\n  polis dev kill 1 && polis dev start 1")]
    Kill(DevNodeArguments),
    /// Show a node's log
    Logs(DevLogsArguments),
    /// Stop all nodes
    #[command(after_help = "Examples:\n  polis dev down\n  polis dev down --purge")]
    Down {
        #[command(flatten)]
        directory: DevDirectory,
        /// Remove the directory with everything in it, once the nodes have ended
        #[arg(long)]
        purge: bool,
    },
    /// Become a node process once the parent has recorded it; used by `up` and `start`
    #[command(hide = true, after_help = "Example:\n  polis dev launch -- node run --root DIR")]
    Launch(DevLaunchArguments),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DevDirectory {
    /// Directory of the cluster. Without it $XDG_STATE_HOME/polis/dev, else ~/.local/state/polis/dev
    #[arg(long, value_name = "DIR", env = "POLIS_DEV_DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    about = "Start the cluster, or what is missing of it",
    long_about = "Start the cluster, or what is missing of it, and return while the nodes stay.\n\n\
        The first node creates the cluster, you become its owner, the others ask for admission and are approved, and all \
        become consensus members.\n\n\
        A cluster that runs is only shown; one that was half made is completed; after a reboot the same nodes start again.",
    after_help = "Examples:\n  polis dev up\n  polis dev up --nodes 1\n  polis dev up --dir ./try --base-address 127.0.0.10"
)]
pub(crate) struct DevUpArguments {
    #[command(flatten)]
    pub(crate) directory: DevDirectory,
    /// Number of nodes, at most 9; without it 3, or as many as the cluster has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) nodes: Option<u32>,
    /// Address of node 1; node N has the one that is N - 1 higher. Without it 127.0.0.2
    #[arg(long, value_name = "IP", value_parser = address::parse)]
    pub(crate) base_address: Option<IpAddr>,
    /// Protection of the nodes' data; without it insecure, or as the cluster has it
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) storage_security: Option<StorageSecurityOfDev>,
    /// The etcd binary; without it the one in PATH. It is remembered for later starts
    #[arg(long, value_name = "PATH")]
    pub(crate) etcd: Option<PathBuf>,
    /// Longest time to wait for the nodes
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
    /// Form of the final table
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[derive(Debug, Args)]
pub(crate) struct DevAddArguments {
    #[command(flatten)]
    pub(crate) directory: DevDirectory,
    /// Longest time to wait for the node
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
    /// Form of the final table
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StorageSecurityOfDev {
    /// Data lie on the disk as they are
    #[default]
    Insecure,
    /// Encrypted and authenticated, with gocryptfs
    Authenticated,
}

#[derive(Debug, Args)]
pub(crate) struct DevNodeArguments {
    /// Number of the node, from 1
    #[arg(value_name = "NODE")]
    pub(crate) node: u32,
    #[command(flatten)]
    pub(crate) directory: DevDirectory,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  polis dev logs 1 --lines 50\n  polis dev logs 1 -f")]
pub(crate) struct DevLogsArguments {
    /// Number of the node, from 1
    #[arg(value_name = "NODE")]
    pub(crate) node: u32,
    /// Go on with new lines until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of last lines to begin with
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) lines: usize,
    #[command(flatten)]
    pub(crate) directory: DevDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct DevLaunchArguments {
    /// Arguments of this binary for the node
    #[arg(last = true, required = true)]
    pub(crate) arguments: Vec<OsString>,
}
