//! How the commands of an operator find their cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::{duration, endpoint};

/// Where the configuration lies: the options of commands that need no cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigurationArguments {
    /// Configuration directory; shared with metroctl. Without it $XDG_CONFIG_HOME/metroctl, else ~/.config/metroctl
    #[arg(long, value_name = "DIR", env = "POLIS_CONFIG", help_heading = "Cluster")]
    pub(crate) config: Option<PathBuf>,
}

/// The options that every command of an operator has.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectionArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    /// Address of a node of the cluster, IP or IP:PORT (port 7835); may be given several times, any of them will do
    #[arg(
        long = "endpoints",
        value_name = "ADDR",
        env = "POLIS_ENDPOINTS",
        value_delimiter = ',',
        value_parser = endpoint::parse,
        help_heading = "Cluster"
    )]
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Longest time to wait for the cluster; a request that found no leader is repeated until then
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse, help_heading = "Cluster")]
    pub(crate) timeout: Duration,
    /// Believe the first CA certificate that an endpoint shows, without asking, and keep it
    #[arg(long, help_heading = "Cluster")]
    pub(crate) insecure_accept_and_persist_first_encountered_ca: bool,
}
