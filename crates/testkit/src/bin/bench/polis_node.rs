//! A node, started as an operator would.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use polis_control::{Client, NodeState};
use polis_testkit::address::TestAddress;
use polis_testkit::processes;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::BenchError;
use crate::child::{ATTEMPT_INTERVAL, Child};
use crate::place::Place;

/// What a node logs when it comes to run.
const RUNNING: &str = "to=Running";

/// A root and an address for a node.
pub(crate) struct NodePlace {
    address: TestAddress,
    directory: TempDir,
    program: PathBuf,
    etcd: PathBuf,
    parameters: PathBuf,
}

/// A node that runs.
pub(crate) struct Node<'a> {
    place: &'a NodePlace,
    child: Child,
    began: Timestamp,
    /// From before its start to the state Running, seen on its control socket.
    pub(crate) until_running: Duration,
}

impl NodePlace {
    pub(crate) fn new(place: &Place) -> Result<Self, BenchError> {
        Ok(Self {
            address: TestAddress::claim(),
            directory: place.scratch()?,
            program: place.polis.clone(),
            etcd: place.etcd.clone(),
            parameters: place.parameters.clone(),
        })
    }

    /// Starts the node and waits until it runs.
    pub(crate) async fn start(&self) -> Result<Node<'_>, BenchError> {
        let root = self.directory.path().join("root");
        let arguments: Vec<OsString> = vec![
            "node".into(),
            "run".into(),
            "--root".into(),
            root.clone().into(),
            "--parameters".into(),
            self.parameters.clone().into(),
            "--address".into(),
            self.address.ip.to_string().into(),
            "--etcd".into(),
            self.etcd.clone().into(),
            "--log".into(),
            "json".into(),
        ];
        let (begin, began) = (Instant::now(), Timestamp::now());
        let mut child = Child::start(&self.program, arguments, None).await?;
        let running = child.until("Running", running(&root)).await?;
        Ok(Node { place: self, child, began, until_running: running - begin })
    }
}

impl Node<'_> {
    /// Process id of the node itself.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL and waits until its etcd is gone too. Returns when it ran by its own log, as time since its start.
    pub(crate) async fn kill(self) -> Result<Duration, BenchError> {
        let log = self.child.kill().await?;
        processes::wait_until_gone(self.place.directory.path())?;
        let mut entries = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let running = entries.rfind(|entry| entry["message"].as_str().is_some_and(|text| text.contains(RUNNING)));
        let running = running.ok_or("the node has not logged that it runs")?;
        let at: Timestamp = running["timestamp"].as_str().unwrap_or_default().parse()?;
        Ok(at.duration_since(self.began).try_into()?)
    }
}

/// Waits until the node says that it runs.
async fn running(root: &Path) -> Instant {
    loop {
        if let Ok(mut client) = Client::connect(root, true).await {
            while let Ok(status) = client.next().await {
                if status.state == NodeState::Running {
                    return Instant::now();
                }
            }
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
}
