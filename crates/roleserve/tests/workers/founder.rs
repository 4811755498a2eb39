//! The first member of a cluster, with the real etcd, and what tests do with members of nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_consensus::{Configuration, Consensus, Member, PEER_PORT, PeerPki, Phase, Start, Status, Timing};
use polis_identity::{NodeId, PeerAddress, PublicKey};
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::ConsensusMember as ConsensusMemberRole;
use polis_proto::enrolment::GetMembersResponse;
use polis_proto::enrolment::get_members_response::ConsensusMember;
use polis_roleserve::{StoredMember, store_first_directory};
use polis_rpc::testing::TestCluster;
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::leader::Leader;
use crate::node::{Node, PATIENCE, etcd, free_address};

/// A founder, and a node that knows where it is and does not run yet.
pub(crate) async fn scene() -> (TestCluster, Founder, Node) {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let node = Node::new(&cluster);
    store_first_directory(&node.disk, [(founder.leader.node.id, vec![founder.leader.ip])]).unwrap();
    (cluster, founder, node)
}

/// The same with a node that has become a member.
pub(crate) async fn joined() -> (TestCluster, Founder, Node) {
    let (cluster, founder, mut node) = scene().await;
    founder.admit(&node).await;
    node.start();
    founder.promote(&node).await;
    node.works().await;
    (cluster, founder, node)
}

/// The first member of a cluster, with a leader on the same address whose answers the test decides.
pub(crate) struct Founder {
    pub(crate) leader: Leader,
    pki: PeerPki,
    consensus: Consensus,
    address: watch::Sender<Option<IpAddr>>,
    harness: Harness,
    _directory: TempDir,
}

impl Founder {
    pub(crate) async fn start(cluster: &TestCluster) -> Self {
        let leader = Leader::start(cluster.node(), free_address());
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let layout = Layout::new(Arc::clone(&disk));
        layout.prepare_start().unwrap();
        for made in [&layout.data.directory, &layout.data.etcd.directory, &layout.data.etcd.data] {
            made.create("test").unwrap();
        }
        let pki = PeerPki::found(&leader.node.key);
        let address = watch::Sender::new(Some(leader.ip));
        let consensus = Consensus::new(Configuration {
            etcd: etcd(),
            public_key: leader.node.key.public(),
            pki: pki.clone(),
            address: address.subscribe(),
            disk,
            start: Start::Found,
            timing: Timing::Network(polis_consensus::Pace::default()),
        })
        .unwrap();
        let run = consensus.clone();
        let harness = Harness::start(move |context: Context| {
            let run = run.clone();
            async move {
                context.run("consensus", move |context: Context| run.run(context))?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        let founder = Self { leader, pki, consensus, address, harness, _directory: directory };
        if timeout(PATIENCE, founder.consensus.ready()).await.is_err() {
            panic!("the founder is not ready\n{}", founder.harness.describe());
        }
        founder
    }

    /// Adds a node as a learner, and gives it the role.
    pub(crate) async fn admit(&self, node: &Node) {
        self.add(node).await;
        self.give_role(node);
    }

    /// Lets the leader tell that a node has the role, with credentials that are issued anew.
    pub(crate) fn give_role(&self, node: &Node) {
        let authority = self.pki.authority().unwrap();
        let role = ConsensusMemberRole {
            ca_certificate: self.pki.authority_certificate().der().to_vec(),
            peer_certificate: authority.issue_peer(&node.identity.public_key()).der().to_vec(),
            initial_crl: self.pki.revocations().der().to_vec(),
            peers: Vec::new(),
        };
        let roles = NodeRoles { consensus_member: Some(role), ..NodeRoles::default() };
        self.leader.script.set_node(node.wire(roles));
    }

    /// Lets the leader tell that a node has no role.
    pub(crate) fn take_role(&self, node: &Node) {
        self.leader.script.set_node(node.wire(NodeRoles::default()));
    }

    /// Adds a node as a learner, and lets the leader tell that.
    pub(crate) async fn add(&self, node: &Node) {
        let key = node.identity.public_key();
        let peer = (PeerAddress::of(&key).ip(), SocketAddr::new(node.ip(), PEER_PORT));
        self.consensus.set_peers([peer].into());
        let members = self.consensus.membership().add_learner("test", &key).await.unwrap();
        self.tell(node, &members);
    }

    /// Lets the leader tell these members, which are the founder and perhaps a node.
    fn tell(&self, node: &Node, members: &[Member]) {
        let wire = |member: &Member| {
            let (key, ip) = self.known(node, member);
            ConsensusMember {
                node_id: NodeId::of(&key).to_string(),
                public_key: key.as_bytes().to_vec(),
                addresses: vec![ip.to_string()],
                learner: member.is_learner,
                started: member.is_started,
            }
        };
        let members = members.iter().map(wire).collect();
        self.leader.script.set_members(GetMembersResponse { members, signed_list: None });
    }

    fn known(&self, node: &Node, member: &Member) -> (PublicKey, IpAddr) {
        let keys = [(self.leader.node.key.public(), self.leader.ip), (node.identity.public_key(), node.ip())];
        keys.into_iter().find(|(key, _)| member.address == Some(PeerAddress::of(key).ip())).unwrap()
    }

    pub(crate) async fn promote(&self, node: &Node) {
        let promoted = self.consensus.membership().promote("test", &node.identity.public_key(), PATIENCE).await;
        if let Err(error) = promoted {
            panic!("not promoted: {error}\n{}", node.running().harness.describe());
        }
    }

    pub(crate) async fn remove(&self, node: &Node) {
        let members = self.consensus.membership().remove("test", &node.identity.public_key()).await.unwrap();
        self.tell(node, &members);
    }

    /// It is now at another address, with all that it serves.
    pub(crate) async fn move_to(mut self, ip: IpAddr) -> Self {
        let node = self.leader.node.clone();
        let script = self.leader.stop().await;
        self.leader = Leader::go_on(node, ip, script);
        self.address.send_replace(Some(ip));
        self
    }

    pub(crate) async fn finish(self) {
        self.harness.finish().await;
        self.leader.stop().await;
    }
}

impl Node {
    pub(crate) async fn wait_stored(&self, expected: &str) {
        let is_it = async {
            while self.stored() != expected {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(PATIENCE, is_it).await.is_err() {
            panic!("{} is not {expected}\n{}", self.stored(), self.running().harness.describe());
        }
    }

    pub(crate) fn stored(&self) -> &'static str {
        match StoredMember::load(&self.layout, &self.identity.key).unwrap() {
            StoredMember::Absent => "absent",
            StoredMember::Remains => "remains",
            StoredMember::Reserved => "reserved",
            StoredMember::Joining(_) => "joining",
            StoredMember::Established(_) => "established",
        }
    }

    /// The certificate of the member that is about to join, if there is one.
    pub(crate) fn credentials(&self) -> Option<Vec<u8>> {
        match StoredMember::load(&self.layout, &self.identity.key).unwrap() {
            StoredMember::Joining(credentials) => Some(credentials.certificate().der().to_vec()),
            StoredMember::Absent | StoredMember::Remains | StoredMember::Reserved | StoredMember::Established(_) => {
                None
            }
        }
    }

    pub(crate) async fn member(&self) -> Consensus {
        let member = self.running().control_plane.member();
        let waited = timeout(PATIENCE, known(member)).await;
        waited.unwrap_or_else(|_| panic!("no member was started\n{}", self.running().harness.describe()))
    }

    /// Waits until the member works, and writes through it.
    pub(crate) async fn works(&self) {
        let member = self.member().await;
        if timeout(PATIENCE, member.ready()).await.is_err() {
            let status: Status = member.status().borrow().clone();
            panic!("the member does not work: {status:?}\n{}", self.running().harness.describe());
        }
        member.kv_root().put("test", "/test", self.id().to_string()).await.unwrap();
        self.wait_stored("established").await;
    }

    /// Waits until the etcd of this node has been started so often after it was removed, and has ended as removed again.
    pub(crate) async fn runs_though_removed(&self, times: usize) {
        let mut status = self.member().await.status();
        let runs = async {
            for _ in 0..times {
                let ended = |status: &Status| (status.phase, status.process_id) == (Phase::Removed, None);
                status.wait_for(ended).await.unwrap();
                status.wait_for(|status| status.process_id.is_some()).await.unwrap();
            }
        };
        if timeout(PATIENCE, runs).await.is_err() {
            panic!("it does not run\n{}", self.running().harness.describe());
        }
    }

    /// Waits until the etcd of this node has lost its own connection to the other one, and whoever is there instead is none; or until
    /// it has got one again.
    pub(crate) async fn wait_connection(&self, state: &str) {
        let is_it = || {
            let log = self.running().harness.describe();
            let of_own = |line: &&str| line.contains("TCP streaming connection") && line.contains("stream-reader-type");
            log.lines().rfind(of_own).is_some_and(|line| line.contains(state))
        };
        let becomes_it = async {
            while !is_it() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, becomes_it).await.is_err() {
            panic!("the connection is not {state}\n{}", self.running().harness.describe());
        }
    }

    /// Waits until a write is acknowledged, however many are refused while there is no leader. Whether that happens at all depends on
    /// who led before.
    pub(crate) async fn works_again(&self) {
        let store = self.member().await.kv_root();
        let write = async {
            while store.put("test", "/test", "again").await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, write).await.is_err() {
            panic!("nothing is acknowledged\n{}", self.running().harness.describe());
        }
    }

    pub(crate) async fn no_member(&self) {
        let member = self.running().control_plane.member();
        let curator = self.running().control_plane.curator();
        let gone = async {
            member.clone().wait_for(Option::is_none).await.unwrap();
            curator.clone().wait_for(Option::is_none).await.unwrap();
        };
        if timeout(PATIENCE, gone).await.is_err() {
            panic!("the member is still there\n{}", self.running().harness.describe());
        }
        self.wait_stored("absent").await;
    }

    /// A file of the consensus member.
    pub(crate) fn disk_path(&self, name: &str) -> PathBuf {
        self.layout.data.etcd.data.full_path().join("member").join(name)
    }

    pub(crate) fn set_aside(&self) -> Vec<String> {
        let names = self.layout.data.etcd.directory.list().unwrap();
        names.into_iter().filter(|name| name.starts_with("removed-")).collect()
    }
}

async fn known<T: Clone>(mut value: watch::Receiver<Option<T>>) -> T {
    value.wait_for(Option::is_some).await.unwrap().clone().unwrap()
}
