//! `polis unlock`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::{duration, endpoint};

#[derive(Debug, Args)]
#[command(
    about = "Open a locked node with the recovery key",
    long_about = "Open a locked node with the recovery key.\n\n\
        A node that waits for others shows itself with the key that its recovery blob names, and is opened once you have given \
        the words. One whose TPM gives nothing out any more (another board, another firmware) shows itself with a fresh key: \
        then its fingerprint has to be given, as it stands on the node's own console, so that the words open this node and \
        nobody who stands in between. The words do not leave this machine.",
    after_help = "Example:\n  \
        polis unlock --endpoints 192.0.2.10 --recovery -\n  \
        polis unlock --endpoints 192.0.2.10 --recovery words.txt --fingerprint 3f1c9a0b5e7d2468aabbccddeeff0011"
)]
pub(crate) struct UnlockArguments {
    /// Address of the node, IP or IP:PORT (port 7836); may be given several times, for several nodes of one cluster
    #[arg(
        long = "endpoints",
        value_name = "ADDR",
        required = true,
        value_delimiter = ',',
        value_parser = endpoint::parse_unlock
    )]
    pub(crate) endpoints: Vec<SocketAddr>,
    /// The words of the recovery key: a file, or - to be asked for them (or to read them from a pipe)
    #[arg(long, value_name = "FILE|-")]
    pub(crate) recovery: PathBuf,
    /// Fingerprint that a node shows on its console, in its log and in `polis node status`; may be given several times
    #[arg(long, value_name = "FP", value_delimiter = ',')]
    pub(crate) fingerprint: Vec<String>,
    /// Longest time to wait for a node's answer; one that opens its data takes some seconds
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}
