//! What `polis node run` is told.

use std::net::IpAddr;
use std::path::PathBuf;

use polis_control::Peer;

/// Options of a node that runs as a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// Root directory of the node; made when it does not exist.
    pub root: PathBuf,
    /// Parameters file; absent means to look at the usual places.
    pub parameters: Option<PathBuf>,
    /// Address of the node; absent means that of the default route.
    pub address: Option<IpAddr>,
    /// etcd binary; absent means the first in `PATH`.
    pub etcd: Option<PathBuf>,
    /// Run etcd whatever its version.
    pub etcd_unsafe_version: bool,
    /// Device or partition for the data; absent means a directory below the root.
    pub data_device: Option<PathBuf>,
    /// The program that speaks to the TPM; absent means the one beside this program, or the first in `PATH`.
    pub tpm_helper: Option<PathBuf>,
    /// Where other nodes are, beside what the node itself knows.
    pub peers: Vec<Peer>,
    /// Form of the log on standard error.
    pub log: LogFormat,
}

/// Form of the log on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people; coloured on a terminal.
    Console,
    /// One JSON object a line.
    Json,
}
