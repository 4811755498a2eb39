//! The consensus member of a node comes and goes with its role, with the real etcd.

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
use polis_storage::{Disk, HostDisk, Layout, LocalRoles, MemberJoin};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::cluster::TestCluster;
use crate::leader::Leader;
use crate::node::{Node, PATIENCE, etcd, free_address};

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

    /// The role, with what was issued for this node.
    pub(crate) fn role(&self, node: &Node) -> NodeRoles {
        let authority = self.pki.authority().unwrap();
        NodeRoles {
            consensus_member: Some(ConsensusMemberRole {
                ca_certificate: self.pki.authority_certificate().der().to_vec(),
                peer_certificate: authority.issue_peer(&node.identity.public_key()).der().to_vec(),
                initial_crl: self.pki.revocations().der().to_vec(),
                peers: Vec::new(),
            }),
            ..NodeRoles::default()
        }
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
    async fn move_to(mut self, ip: IpAddr) -> Self {
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
    /// A node that knows where the founder is.
    pub(crate) fn of(cluster: &TestCluster, founder: &Founder) -> Self {
        let node = Self::new(cluster);
        store_first_directory(&node.disk, [(founder.leader.node.id, vec![founder.leader.ip])]).unwrap();
        node
    }

    async fn wait_stored(&self, expected: &str) {
        let is_it = async {
            while self.stored() != expected {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(PATIENCE, is_it).await.is_err() {
            panic!("{} is not {expected}\n{}", self.stored(), self.running().harness.describe());
        }
    }

    fn stored(&self) -> &'static str {
        match StoredMember::load(&self.layout, &self.identity.key).unwrap() {
            StoredMember::Absent => "absent",
            StoredMember::Remains => "remains",
            StoredMember::Reserved => "reserved",
            StoredMember::Joining(_) => "joining",
            StoredMember::Established(_) => "established",
        }
    }

    /// The certificate of the member that is about to join, if there is one.
    fn credentials(&self) -> Option<Vec<u8>> {
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
    async fn runs_though_removed(&self, times: usize) {
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
    async fn wait_connection(&self, state: &str) {
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
    async fn works_again(&self) {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_taken_and_given_again_starts_clean() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    script.set_node(node.wire(NodeRoles::default()));
    node.start();
    node.in_contact().await;
    assert_eq!(node.stored(), "absent");

    for round in 1..=2 {
        founder.add(&node).await;
        script.set_node(node.wire(founder.role(&node)));
        founder.promote(&node).await;
        node.works().await;
        let runs_curator = |status: &Option<polis_proto::common::NodeStatus>| {
            status.as_ref().is_some_and(|status| status.running_curator.is_some_and(|curator| curator.port == 7835))
        };
        script.wait_statuses(|told| told.last().is_some_and(|told| runs_curator(&told.status))).await;

        founder.remove(&node).await;
        script.set_node(node.wire(NodeRoles::default()));
        node.no_member().await;
        assert_eq!(node.set_aside().len(), round);
        script.wait_statuses(|told| told.last().is_some_and(|told| !runs_curator(&told.status))).await;
    }
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_member_starts_once_the_node_is_prepared_for_a_vote() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    node.prepared.send_replace(false);
    founder.add(&node).await;
    script.set_node(node.wire(founder.role(&node)));
    node.start();
    node.wait("asked", node.asked.subscribe(), |asked| *asked == 1).await;
    assert_eq!(node.stored(), "reserved");
    assert!(node.running().control_plane.member().borrow().is_none(), "it was started");

    // Waiting for that keeps nobody from taking the role away.
    script.set_node(node.wire(NodeRoles::default()));
    node.no_member().await;
    script.set_node(node.wire(founder.role(&node)));
    node.wait("asked again", node.asked.subscribe(), |asked| *asked == 2).await;
    assert_eq!(node.stored(), "reserved");
    node.prepared.send_replace(true);
    founder.promote(&node).await;
    node.works().await;

    // One that has a vote may be needed by the leader itself: nothing is waited for.
    node.stop().await;
    node.prepared.send_replace(false);
    node.start();
    node.works().await;
    assert_eq!(*node.asked.borrow(), 2);
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_goes_on_at_the_next_start() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    // The role is there, and the leader has not added the node yet.
    script.set_node(node.wire(founder.role(&node)));
    node.start();
    node.wait_stored("joining").await;
    node.member().await;
    node.stop().await;
    assert_eq!(node.stored(), "joining");
    founder.add(&node).await;
    node.start();
    founder.promote(&node).await;
    node.works().await;

    // And one that has worked comes back with its data, although nobody tells it anything.
    node.stop().await;
    script.refuse(Some(tonic::Status::unavailable("not now")));
    node.start();
    node.works().await;
    assert_eq!(node.set_aside(), [""; 0]);
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_removed_and_keeps_its_role_joins_anew() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    founder.add(&node).await;
    script.set_node(node.wire(founder.role(&node)));
    node.start();
    founder.promote(&node).await;
    node.works().await;
    // Its etcd knows that it was removed, and the cluster does not say so: others may need its vote to find out.
    founder.remove(&node).await;
    node.runs_though_removed(2).await;
    assert_eq!((node.stored(), node.set_aside()), ("established", Vec::new()));
    // The role was taken and given back, and the node has heard of neither.
    let before = node.credentials();
    script.set_node(node.wire(founder.role(&node)));
    let is_replaced = async {
        while node.credentials() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, is_replaced).await.unwrap();
    founder.add(&node).await;
    founder.promote(&node).await;
    node.works().await;
    assert!(node.set_aside().contains(&"removed-1".to_owned()));
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_kill_has_left_of_a_leave_is_put_away_without_anybodys_help() {
    let cluster = TestCluster::default();
    for (credentials, data, joining) in
        [(true, true, false), (true, true, true), (true, false, false), (false, true, false), (false, false, true)]
    {
        let mut node = Node::new(&cluster);
        if credentials {
            PeerPki::found(&node.identity.key).store(&node.layout.data.etcd.credentials, "test").unwrap();
        }
        if data {
            let path = node.layout.data.etcd.data.path().child("member").unwrap();
            node.disk.create_directory(&path, 0o700).unwrap();
        }
        if joining {
            let record = MemberJoin { node_id: node.id().to_string() };
            node.layout.data.etcd.joining.store(&record, "test").unwrap();
        }
        node.layout.data.node.roles.store(&LocalRoles::default(), "test").unwrap();
        assert_ne!(node.stored(), "absent");
        node.start();
        node.no_member().await;
        assert_eq!(node.set_aside().len(), usize::from(data), "{credentials} {data} {joining}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_moved_is_found_by_its_key() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    founder.add(&node).await;
    script.set_node(node.wire(founder.role(&node)));
    node.start();
    founder.promote(&node).await;
    node.works().await;

    // The other member moves, and somebody else of the cluster is now where it was.
    let (old, new) = (founder.leader.ip, free_address());
    let founder = founder.move_to(new).await;
    let impostor = Leader::start(cluster.node(), old);
    // Whether there is a leader meanwhile depends on who leads, as the other still finds this one.
    node.wait_connection("lost").await;
    node.peers.send_replace(vec![(founder.leader.node.id, new)]);
    node.works_again().await;
    node.wait_connection("established").await;
    node.stop().await;
    founder.finish().await;
    impostor.stop().await;
}
