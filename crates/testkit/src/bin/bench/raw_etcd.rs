//! etcd by itself: what a node is measured against.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use etcd_client::{Channel, Client, KvClient};
use polis_consensus::PeerPki;
use polis_identity::NodeKey;
use polis_testkit::address::TestAddress;
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::transport::Endpoint;

use crate::BenchError;
use crate::child::{ATTEMPT_INTERVAL, Child};
use crate::place::Place;

/// Name of the client socket in etcd's working directory: it takes a unix socket only in the form host:port.
pub(crate) const SOCKET: &str = "client.sock:0";

/// Port for peers. Nobody connects to it.
pub(crate) const PEER_PORT: u16 = 2380;

const KEY: &str = "bench";

/// How etcd is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flags {
    /// Everything as it comes; only the addresses are given, so that it does not meet another etcd.
    Default,
    /// Heartbeat 10 ms, election timeout 100 ms, mutual TLS between peers, with certificates like a node's.
    Quick,
}

/// A directory and an address for an etcd.
pub(crate) struct EtcdPlace {
    flags: Flags,
    address: TestAddress,
    directory: TempDir,
    program: PathBuf,
}

/// An etcd that answers.
pub(crate) struct Etcd {
    child: Child,
    /// From before its start to its first answer.
    pub(crate) until_answer: Duration,
}

impl Flags {
    /// What it is called in the table.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Default => "raw etcd, defaults",
            Self::Quick => "raw etcd, 10/100 ms, TLS",
        }
    }
}

impl EtcdPlace {
    pub(crate) fn new(place: &Place, flags: Flags) -> Result<Self, BenchError> {
        let directory = place.scratch()?;
        if flags == Flags::Quick {
            let key = NodeKey::generate();
            let peers = PeerPki::found(&key);
            let write = |name, text: String| fs::write(directory.path().join(name), text);
            write("ca.pem", peers.authority_certificate().pem())?;
            write("certificate.pem", peers.certificate().pem())?;
            write("key.pem", key.pkcs8_pem().to_string())?;
        }
        Ok(Self { flags, address: TestAddress::claim(), directory, program: place.etcd.clone() })
    }

    fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it on an empty directory and waits for its first acknowledged write.
    pub(crate) async fn first_put(&self) -> Result<Etcd, BenchError> {
        self.start("writing", async |mut client: KvClient| client.put(KEY, "value", None).await.is_ok()).await
    }

    /// Starts it again and waits for its first linearizable read.
    pub(crate) async fn first_read(&self) -> Result<Etcd, BenchError> {
        // A killed etcd leaves its socket, and the next one does not start while it is there.
        fs::remove_file(self.directory().join(SOCKET))?;
        let read = async |mut client: KvClient| client.get(KEY, None).await.is_ok_and(|found| found.count() == 1);
        self.start("reading", read).await
    }

    async fn start(&self, what: &str, call: impl AsyncFn(KvClient) -> bool) -> Result<Etcd, BenchError> {
        // A socket's address is short, and the directory may be deep.
        let directory = File::open(self.directory())?;
        let socket = format!("unix:///proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let channel = Endpoint::from_shared(socket)?.connect_lazy();
        let client = Client::from_channel(Channel::Tonic(channel), None).await?.kv_client();
        let begin = Instant::now();
        let mut child = Child::start(&self.program, self.arguments(), Some(self.directory().to_owned()), None).await?;
        let answered = child.until(what, async {
            while !call(client.clone()).await {
                sleep(ATTEMPT_INTERVAL).await;
            }
            Instant::now()
        });
        let answered = answered.await?;
        Ok(Etcd { child, until_answer: answered - begin })
    }

    fn arguments(&self) -> Vec<OsString> {
        let scheme = if self.flags == Flags::Quick { "https" } else { "http" };
        let peer_url = format!("{scheme}://{}:{PEER_PORT}", self.address.ip);
        let mut arguments = vec![
            "--data-dir=data".to_owned(),
            format!("--listen-client-urls=unix://{SOCKET}"),
            format!("--advertise-client-urls=unix://{SOCKET}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
        ];
        if self.flags == Flags::Quick {
            arguments.extend(
                [
                    "--heartbeat-interval=10",
                    "--election-timeout=100",
                    "--peer-client-cert-auth=true",
                    "--peer-trusted-ca-file=ca.pem",
                    "--peer-cert-file=certificate.pem",
                    "--peer-key-file=key.pem",
                ]
                .map(str::to_owned),
            );
        }
        arguments.into_iter().map(Into::into).collect()
    }
}

impl Etcd {
    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL.
    pub(crate) async fn kill(self) -> Result<(), BenchError> {
        self.child.kill().await.map(drop)
    }
}
