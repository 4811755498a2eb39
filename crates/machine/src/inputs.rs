//! What the node tells the machine it runs on.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::console::Overview;

/// Values that the machine follows for as long as it runs. One whose sender is gone keeps its last value.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// What the consoles show of the node.
    pub overview: watch::Receiver<Arc<Overview>>,
    /// Who this node is and where the others are, for the host's name, `/etc/hosts` and `/etc/machine-id`.
    pub names: watch::Receiver<Arc<Names>>,
    /// Resolvers that the network names, the best first.
    pub nameservers: watch::Receiver<Vec<IpAddr>>,
    /// Servers of time that the network names.
    pub time_servers: watch::Receiver<Vec<IpAddr>>,
    /// The data directory while its partition is open: then, and only then, the log is kept there.
    pub data: watch::Receiver<Option<PathBuf>>,
}

/// Names of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Id of this node, once it has one: its host name.
    pub node_id: Option<String>,
    /// Address of this node; absent while it has none.
    pub address: Option<IpAddr>,
    /// Ids and last known addresses of other nodes.
    pub others: Vec<(String, IpAddr)>,
}
