//! A node, started as an operator would.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use polis_control::{Client, NodeState};
use polis_testkit::address::TestAddress;
use polis_testkit::world::{World, find_tool};
use polis_testkit::{mounts, processes};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::BenchError;
use crate::child::{ATTEMPT_INTERVAL, Child};
use crate::place::Place;

/// What a node logs when it comes to run.
const RUNNING: &str = "to=Running";

/// A root and an address for a node.
pub(crate) struct NodePlace<'a> {
    place: &'a Place,
    network: Network,
    directory: TempDir,
    /// What it is told at its first start.
    pub(crate) parameters: PathBuf,
}

/// Where a node is reached.
enum Network {
    /// On a loopback address of this machine.
    Loopback(TestAddress),
    /// On a host of a network of its own.
    World(Arc<World>, usize),
}

/// A node that was started.
pub(crate) struct Node {
    child: Child,
    directory: PathBuf,
    root: PathBuf,
    began: Timestamp,
    begin: Instant,
    /// From before its start to the state Running, seen on its control socket.
    pub(crate) until_running: Duration,
}

impl<'a> NodePlace<'a> {
    /// For a node that founds a cluster, unless it is given other parameters.
    pub(crate) fn new(place: &'a Place) -> Result<Self, BenchError> {
        Self::at(place, Network::Loopback(TestAddress::claim()))
    }

    /// The same on a host of a network of its own.
    pub(crate) fn in_world(place: &'a Place, world: Arc<World>, host: usize) -> Result<Self, BenchError> {
        Self::at(place, Network::World(world, host))
    }

    fn at(place: &'a Place, network: Network) -> Result<Self, BenchError> {
        let (directory, parameters) = (place.scratch()?, place.parameters.clone());
        Ok(Self { place, network, directory, parameters })
    }

    /// Its address.
    pub(crate) fn ip(&self) -> IpAddr {
        match &self.network {
            Network::Loopback(address) => address.ip,
            Network::World(world, host) => world.host(*host).ip(),
        }
    }

    /// Its root.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory().join("root")
    }

    /// A directory of its own, with its root in it.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the node.
    pub(crate) async fn launch(&self) -> Result<Node, BenchError> {
        let directory = self.directory().to_owned();
        let root = self.root();
        let mut arguments: Vec<OsString> = vec![
            "node".into(),
            "run".into(),
            "--root".into(),
            root.clone().into(),
            "--parameters".into(),
            self.parameters.clone().into(),
            "--address".into(),
            self.ip().to_string().into(),
            "--etcd".into(),
            self.place.etcd.clone().into(),
            "--log".into(),
            "json".into(),
        ];
        let log = self.place.log(&format!("polis-{}", self.ip()))?;
        let mut program = self.place.polis.clone();
        if let Network::World(world, host) = &self.network {
            let command = world.host(*host).plain_command(&program);
            arguments.splice(0..0, command.get_args().map(OsString::from));
            let name = command.get_program();
            program = find_tool(name).ok_or_else(|| format!("there is no {}", name.display()))?;
        }
        let (begin, began) = (Instant::now(), Timestamp::now());
        let child = Child::start(&program, arguments, None, log).await?;
        Ok(Node { child, directory, root, began, begin, until_running: Duration::ZERO })
    }

    /// Starts the node and waits until it runs.
    pub(crate) async fn start(&self) -> Result<Node, BenchError> {
        let mut node = self.launch().await?;
        node.running().await?;
        Ok(node)
    }
}

impl Drop for NodePlace<'_> {
    fn drop(&mut self) {
        // Of a killed node whose data are encrypted.
        mounts::clear(self.directory());
    }
}

impl Node {
    /// Process id of the node itself.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// When it was started, by the clock of its log.
    pub(crate) const fn began(&self) -> Timestamp {
        self.began
    }

    /// Waits until it runs, and returns its name in its cluster.
    pub(crate) async fn running(&mut self) -> Result<String, BenchError> {
        let (running, name) = self.child.until("Running", running(&self.root)).await?;
        self.until_running = running - self.begin;
        Ok(name)
    }

    /// Sends SIGKILL, and does not wait.
    pub(crate) fn send_kill(&self) {
        self.child.send_kill();
    }

    /// Asks it to stop, and does not wait.
    pub(crate) fn send_terminate(&self) -> Result<(), BenchError> {
        self.child.send_terminate()
    }

    /// Waits until its process has ended, and returns its log.
    pub(crate) async fn ended(self) -> Result<String, BenchError> {
        self.child.ended().await
    }

    /// Ends it with SIGKILL and waits until its etcd is gone too. Returns when it ran by its own log, as time since its start.
    pub(crate) async fn kill(self) -> Result<Duration, BenchError> {
        let (began, directory) = (self.began, self.directory.clone());
        let log = self.child.kill().await?;
        processes::wait_until_gone(&directory)?;
        let running = last_logged(&log, &[RUNNING])?;
        Ok(running.duration_since(began).try_into()?)
    }
}

/// When a node has logged, the last time, a message that contains one of these texts.
pub(crate) fn last_logged(log: &str, texts: &[&str]) -> Result<Timestamp, BenchError> {
    let mut entries = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let says = |message: &str| texts.iter().any(|text| message.contains(text));
    let found = entries.rfind(|entry| entry["message"].as_str().is_some_and(says));
    let found = found.ok_or_else(|| format!("the node has not logged any of {texts:?}"))?;
    Ok(found["timestamp"].as_str().unwrap_or_default().parse()?)
}

/// Waits until the node says that it runs, and how it is called.
async fn running(root: &Path) -> (Instant, String) {
    loop {
        if let Ok(mut client) = Client::connect(root, true).await {
            while let Ok(status) = client.next().await {
                if status.state == NodeState::Running {
                    return (Instant::now(), status.node_id.unwrap_or_default());
                }
            }
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
}
