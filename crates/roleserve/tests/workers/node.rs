//! A node of a test: its disk, its identity, and its control plane and workers under a supervisor.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use polis_consensus::EtcdBinary;
use polis_identity::{JoinKey, NodeId, ShareKey};
use polis_proto::common::NodeRoles;
use polis_proto::common::NodeStatus;
use polis_proto::curator_api::Node as WireNode;
use polis_proto::version::spec::Version;
use polis_roleserve::{
    Announce, BeforeVote, ControlPlane, ControlPlaneSettings, Identity, RoleServe, Settings, SplitState,
};
use polis_rpc::testing::{TestCluster, TestNode};
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{BoxError, Context};
use polis_unlock_service::Members;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::keeping::ListFile;

/// Patience with what should take a fraction of a second, also on a machine that does other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An address of this test alone: the middle from the process, the end from a counter.
pub(crate) fn free_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = process::id();
    let middle = u8::try_from((process >> 8) % 254 + 1).unwrap();
    Ipv4Addr::new(127, middle, process.to_le_bytes()[0], NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// The real etcd.
pub(crate) fn etcd() -> EtcdBinary {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/etcd/usr/bin/etcd");
    let explicit = std::env::var_os("POLIS_ETCD").map(PathBuf::from).or_else(|| unpacked.is_file().then_some(unpacked));
    EtcdBinary::find(explicit.as_deref(), std::env::var_os("PATH").as_deref())
        .unwrap_or_else(|_| panic!("there is no etcd to test with; run: scripts/setup test"))
}

/// Is prepared when the test says so.
struct WhenTold {
    prepared: watch::Receiver<bool>,
    asked: watch::Sender<u32>,
}

#[async_trait]
impl BeforeVote for WhenTold {
    async fn prepare(&self) -> Result<(), BoxError> {
        self.asked.send_modify(|asked| *asked += 1);
        self.prepared.clone().wait_for(|prepared| *prepared).await?;
        Ok(())
    }
}

/// A node.
pub(crate) struct Node {
    pub(crate) node: TestNode,
    pub(crate) identity: Arc<Identity>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) layout: Layout,
    pub(crate) address: watch::Sender<Option<IpAddr>>,
    pub(crate) peers: watch::Sender<Vec<(NodeId, IpAddr)>>,
    pub(crate) announce: Announce,
    /// How it has split its key.
    pub(crate) split: watch::Sender<Option<SplitState>>,
    list_file: Arc<ListFile>,
    /// Whether the node is prepared for a vote when it is asked.
    pub(crate) prepared: watch::Sender<bool>,
    /// How often it was asked.
    pub(crate) asked: watch::Sender<u32>,
    running: Option<Running>,
    // Last, so that it goes when nothing uses it any more.
    _directory: TempDir,
}

pub(crate) struct Running {
    pub(crate) role_serve: RoleServe,
    pub(crate) control_plane: ControlPlane,
    pub(crate) members: Members,
    pub(crate) harness: Harness,
}

impl Node {
    /// A node with an empty disk and an address of its own, which knows nobody.
    pub(crate) fn new(cluster: &TestCluster) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let layout = Layout::new(Arc::clone(&disk));
        layout.prepare_start().unwrap();
        for made in
            [&layout.data.directory, &layout.data.etcd.directory, &layout.data.etcd.data, &layout.data.node.directory]
        {
            made.create("test").unwrap();
        }
        let node = cluster.node();
        let identity = Arc::new(Identity {
            key: node.key.clone(),
            certificate: node.certificate.clone(),
            authority: cluster.authority_certificate(),
            join_key: JoinKey::generate(),
            share_public: ShareKey::generate().public(),
        });
        let list_file = ListFile::new(layout.esp.polis.signed_members.clone());
        Self {
            node,
            identity,
            disk,
            layout,
            split: watch::Sender::default(),
            list_file,
            address: watch::Sender::new(Some(free_address())),
            peers: watch::Sender::default(),
            announce: Announce::Nowhere,
            prepared: watch::Sender::new(true),
            asked: watch::Sender::default(),
            running: None,
            _directory: directory,
        }
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.borrow().unwrap()
    }

    pub(crate) fn id(&self) -> NodeId {
        self.node.id
    }

    /// As others see it in the cluster.
    pub(crate) fn wire(&self, roles: NodeRoles) -> WireNode {
        WireNode {
            id: self.id().to_string(),
            roles: Some(roles),
            status: Some(NodeStatus { external_address: self.ip().to_string(), ..NodeStatus::default() }),
            ..WireNode::default()
        }
    }

    /// Starts it as a process does that knows who it is.
    pub(crate) fn start(&mut self) -> &Running {
        assert!(self.running.is_none(), "a node runs once at a time");
        self.layout.prepare_start().unwrap();
        let control_plane = ControlPlane::new(ControlPlaneSettings {
            etcd: etcd(),
            disk: Arc::clone(&self.disk),
            address: self.address.subscribe(),
        });
        let members = self.list_file.members(self.identity.node_id(), &self.identity.authority);
        let role_serve = RoleServe::new(Settings {
            identity: watch::Sender::new(Some(Arc::clone(&self.identity))).subscribe(),
            disk: Arc::clone(&self.disk),
            address: self.address.subscribe(),
            control_plane: control_plane.clone(),
            before_vote: Arc::new(WhenTold { prepared: self.prepared.subscribe(), asked: self.asked.clone() }),
            version: Version::default(),
            peers: self.peers.subscribe(),
            announce: self.announce,
            members: watch::Sender::new(Some(members.clone())).subscribe(),
            split: self.split.subscribe(),
        });
        let parts = (control_plane.clone(), role_serve.clone());
        let harness = Harness::start(move |context: Context| {
            let (control_plane, role_serve) = parts.clone();
            async move {
                context.run("control-plane", control_plane.runnable())?;
                context.run("roles", role_serve.runnable())?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        self.running.insert(Running { role_serve, control_plane, members, harness })
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("the node runs")
    }

    /// Stops it in order.
    pub(crate) async fn stop(&mut self) {
        self.running.take().expect("the node runs").harness.finish().await;
    }

    /// Waits until it has contact with a leader.
    pub(crate) async fn in_contact(&self) {
        self.wait("in contact", self.running().role_serve.contact(), |contact| contact.established).await;
    }

    /// Waits until a watched value is as wanted.
    pub(crate) async fn wait<T: Clone + std::fmt::Debug>(
        &self,
        what: &str,
        mut value: watch::Receiver<T>,
        wanted: impl FnMut(&T) -> bool,
    ) -> T {
        let waited = timeout(PATIENCE, value.wait_for(wanted)).await.map(|value| value.unwrap().clone());
        waited.unwrap_or_else(|_| {
            let described = self.running().harness.describe();
            panic!("not {what} within {PATIENCE:?}: {:?}\n{described}", *value.borrow())
        })
    }

    /// Waits until the condition is raised, or is not.
    pub(crate) async fn wait_condition(&self, name: &str, raised: bool) {
        let conditions = self.running().harness.conditions().watch();
        self.wait(name, conditions, |all| all.contains_key(name) == raised).await;
    }
}
