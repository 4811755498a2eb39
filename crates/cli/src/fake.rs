//! A cluster in this process, for tests of commands: real servers with real TLS, and state that a test can look at and spoil.

mod services;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use polis_control::{EnrolmentPhase, NodeState, Status as NodeStatus};
use polis_identity::{Certificate, OwnerKey, PublicKey};
use polis_proto::api::aaa_server::AaaServer;
use polis_proto::api::management_server::ManagementServer;
use polis_proto::api::node_management_server::NodeManagementServer;
use polis_proto::api::{self, node::Health};
use polis_proto::cluster::cluster_server::ClusterServer;
use polis_proto::cluster::{self, GetStatusResponse};
use polis_proto::common;
use polis_proto::curator_api::curator_local_server::CuratorLocalServer;
use polis_proto::node_api::SaveSnapshotResponse;
use polis_proto::node_api::node_server::NodeServer;
use polis_proto::rpc_detail::MarginRefusal;
use polis_rpc::testing::{TestCluster, TestNode, TestServer};
use polis_rpc::{CURATOR_PORT, Limits, NODE_MANAGEMENT_PORT, detail, listen};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::service::Routes;

use services::FakeNode;

/// What goes wrong with the next call of a method.
pub(crate) enum Fault {
    /// It is refused.
    Refuse(Status),
    /// It is carried out, and the answer is this.
    DoAnd(Status),
}

/// What the cluster keeps.
pub(crate) struct State {
    pub(crate) nodes: Vec<api::Node>,
    pub(crate) status: GetStatusResponse,
    pub(crate) ticket: Vec<u8>,
    pub(crate) configuration: common::ClusterConfiguration,
    pub(crate) owner: PublicKey,
    /// Changes in the order in which they were carried out.
    pub(crate) changes: Vec<String>,
    /// What goes wrong, by method.
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    /// Index of the node that leads.
    pub(crate) leader: Option<usize>,
    /// What the machine of each node starts from; nothing for one that is a daemon.
    pub(crate) boots: Vec<Option<FakeBoot>>,
    /// Whether nodes that are told to restart do so and never answer.
    pub(crate) restarts_silently: bool,
    /// The snapshot that nodes hand out; those that have none refuse.
    pub(crate) snapshot: Vec<SaveSnapshotResponse>,
}

/// The images of a machine, by their SHA-256.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeBoot {
    pub(crate) running: Vec<u8>,
    pub(crate) next: Vec<u8>,
    /// Whether a new image hangs, so that the machine comes back with the one before.
    pub(crate) hangs: bool,
}

struct Shared {
    cluster: TestCluster,
    nodes: Vec<(TestNode, IpAddr)>,
    state: Mutex<State>,
}

/// A cluster of some nodes, all UP, healthy and consensus members; the first leads.
pub(crate) struct FakeCluster {
    shared: Arc<Shared>,
    servers: Vec<(usize, TestServer)>,
    runtime: Runtime,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) key: OwnerKey,
}

impl FakeCluster {
    pub(crate) fn start(nodes: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner-key.pem");
        crate::owner::create_key(&path).unwrap();
        let key = crate::owner::read_owner_key(&path).unwrap();
        let cluster = TestCluster::default();
        let mut listeners = Vec::new();
        let guard = runtime.enter();
        let parts: Vec<(TestNode, IpAddr)> = (0..nodes)
            .map(|index| {
                let (address, pair) = claim();
                listeners.extend(pair.map(|listener| (index, listener)));
                (cluster.node(), address)
            })
            .collect();
        let state = Mutex::new(State::new(&cluster, &parts, key.public()));
        let shared = Arc::new(Shared { cluster, nodes: parts, state });
        let servers = listeners
            .into_iter()
            .map(|(index, listener)| {
                let node = FakeNode { index, shared: Arc::clone(&shared) };
                let routes = if listener.local_addr().unwrap().port() == CURATOR_PORT {
                    Routes::new(CuratorLocalServer::new(node.clone()))
                        .add_service(AaaServer::new(node.clone()))
                        .add_service(ClusterServer::new(node.clone()))
                        .add_service(ManagementServer::new(node))
                } else {
                    Routes::new(NodeManagementServer::new(node.clone())).add_service(NodeServer::new(node))
                };
                let identity = &shared.nodes[index].0.identity;
                (index, TestServer::start_at(listener, identity, Limits::default(), routes))
            })
            .collect();
        drop(guard);
        Self { shared, servers, runtime, directory, key }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    pub(crate) fn node_id(&self, index: usize) -> String {
        self.shared.nodes[index].0.id.to_string()
    }

    pub(crate) fn address(&self, index: usize) -> IpAddr {
        self.shared.nodes[index].1
    }

    pub(crate) fn authority(&self) -> &Certificate {
        self.shared.cluster.authority.certificate().certificate()
    }

    /// Ends the servers of a node; nobody leads if it did.
    pub(crate) fn kill(&mut self, index: usize) {
        let (dead, alive) = std::mem::take(&mut self.servers).into_iter().partition(|(at, _)| *at == index);
        self.servers = alive;
        self.runtime.block_on(futures::future::join_all(
            Vec::<(usize, TestServer)>::into_iter(dead).map(|(_, server)| server.finish()),
        ));
        let mut state = self.state();
        if state.leader == Some(index) {
            state.leader = None;
        }
    }

    /// Puts CA and owner certificate where the commands look for them.
    pub(crate) fn own(&self) {
        std::fs::write(self.path("ca.pem"), self.authority().pem()).unwrap();
        let certificate = self.shared.cluster.authority.issue_user("owner", &self.key.public()).unwrap();
        std::fs::write(self.path("owner.pem"), certificate.pem()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command with the configuration directory and these endpoints; gives what it printed.
    pub(crate) fn polis(&self, line: &str, endpoints: &[usize]) -> Outcome {
        let endpoints: String =
            endpoints.iter().map(|index| format!(" --endpoints {}", self.address(*index))).collect();
        run(&format!("{line} --config {}{endpoints}", self.directory.path().display()))
    }

    pub(crate) fn finish(self) {
        self.runtime.block_on(futures::future::join_all(self.servers.into_iter().map(|(_, server)| server.finish())));
    }
}

/// What a command has printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    /// Exit code and message of a failure.
    pub(crate) failure: Option<(u8, String)>,
    pub(crate) success: bool,
}

impl Outcome {
    pub(crate) fn succeeds(&self) -> &str {
        assert!(self.success && self.failure.is_none(), "{self:#?}");
        &self.stdout
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| unreachable!("{error}: {self:#?}"))
    }

    /// It failed with this exit code, and the message has all these parts.
    pub(crate) fn fails(&self, code: u8, parts: &[&str]) {
        let (found, text) = self.failure.as_ref().unwrap_or_else(|| unreachable!("{self:#?}"));
        assert_eq!(*found, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}

/// Runs a command line in this process.
pub(crate) fn run(line: &str) -> Outcome {
    let command = crate::arguments::tests::parse(line);
    let (result, stdout) = crate::view::capture(|| crate::run_action(command, &crate::local::NoFiles));
    let success =
        result.as_ref().is_ok_and(|code| format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS));
    let failure = result.err().map(|failure| failure.code_and_text());
    Outcome { stdout, failure, success }
}

/// A loopback address that nobody else in this process uses, with listeners on the two ports of a node.
fn claim() -> (IpAddr, [tokio::net::TcpListener; 2]) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, high, low, _] = process.to_be_bytes();
        let last = u8::try_from(number % 250 + 1).unwrap();
        let address = IpAddr::V4(Ipv4Addr::new(127, 64 + high % 128, low ^ u8::try_from(process % 256).unwrap(), last));
        let bind = |port| listen(SocketAddr::new(address, port));
        if let (Ok(curator), Ok(node)) = (bind(CURATOR_PORT), bind(NODE_MANAGEMENT_PORT)) {
            return (address, [curator, node]);
        }
    }
}

impl State {
    fn new(cluster: &TestCluster, nodes: &[(TestNode, IpAddr)], owner: PublicKey) -> Self {
        let member = |(index, (node, _)): (usize, &(TestNode, IpAddr))| cluster::get_status_response::Member {
            node_id: node.id.to_string(),
            member_id: format!("{:x}", index + 10),
            leads_raft: index == 0,
            reachable: true,
            lag: Some(0),
            database_bytes: Some(4_096),
            etcd_version: "3.4.23".into(),
            ..Default::default()
        };
        let voters = u32::try_from(nodes.len()).unwrap();
        let quorum = voters / 2 + 1;
        Self {
            nodes: nodes.iter().map(|(node, address)| up(node.key.public(), *address)).collect(),
            status: GetStatusResponse {
                cluster_id: cluster.authority.certificate().cluster_id().to_string(),
                leader_node_id: nodes[0].0.id.to_string(),
                raft_term: 3,
                members: nodes.iter().enumerate().map(member).collect(),
                quorum,
                margin: i32::try_from(voters - quorum).unwrap(),
                ..GetStatusResponse::default()
            },
            ticket: ticket(0x5a),
            configuration: common::ClusterConfiguration {
                cluster_domain: "cluster.internal".into(),
                tpm_mode: 3,
                storage_security_policy: 4,
                kubernetes: None,
            },
            owner,
            changes: Vec::new(),
            restarts_silently: false,
            faults: VecDeque::new(),
            leader: Some(0),
            boots: vec![None; nodes.len()],
            snapshot: Vec::new(),
        }
    }

    /// The node that a request names.
    fn find(&mut self, id: &str) -> Result<&mut api::Node, Status> {
        let found = self.nodes.iter_mut().find(|node| node.id == id);
        found.ok_or_else(|| Status::not_found(format!("there is no node {id}")))
    }
}

/// A ticket whose secret is this byte again and again.
fn ticket(byte: u8) -> Vec<u8> {
    [&[0x0a, 32][..], &[byte; 32]].concat()
}

/// A node that is as it should be.
pub(crate) fn up(key: PublicKey, address: IpAddr) -> api::Node {
    let version = polis_proto::version::spec::Version {
        release: Some(polis_proto::version::spec::version::Release { major: 0, minor: 1, patch: 0 }),
        git_information: None,
    };
    api::Node {
        pubkey: key.as_bytes().to_vec(),
        id: polis_identity::NodeId::of(&key).to_string(),
        state: common::NodeState::Up.into(),
        status: Some(common::NodeStatus {
            external_address: address.to_string(),
            version: Some(version),
            ..common::NodeStatus::default()
        }),
        roles: Some(common::NodeRoles { consensus_member: Some(Default::default()), ..common::NodeRoles::default() }),
        health: Health::Healthy.into(),
        time_since_heartbeat: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        tpm_usage: common::NodeTpmUsage::NotPresent.into(),
        ..api::Node::default()
    }
}

/// A node that says it is well.
pub(crate) fn node_status(node_id: &str) -> NodeStatus {
    let json = serde_json::json!({
        "state": NodeState::Running,
        "node_id": node_id,
        "phase": EnrolmentPhase::Enrolled,
        "roles": ["ConsensusMember"],
        "conditions": [],
        "running": true,
    });
    serde_json::from_value(json).unwrap()
}

/// A refusal for the margin.
pub(crate) fn margin_refusal(unreachable: &str) -> Status {
    let margin =
        MarginRefusal { voters_after: 2, quorum_after: 2, reachable_after: 1, unreachable: vec![unreachable.into()] };
    detail::with_margin(Status::failed_precondition("the cluster would lose its quorum"), &margin)
}
