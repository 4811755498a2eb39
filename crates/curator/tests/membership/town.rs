//! Nodes of a test: a founder and others, each with its own disk and address, and with a real etcd and a curator while it has
//! the role of a consensus member. What the rest of a node does about its role is done here in a few lines.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::{
    BoxError, Configuration, Consensus, FetchMembers, Member, PEER_PORT, Pace, PeerMap, PeerPki, Phase, Start, Timing,
    Transaction, parse_peer_url, set_aside,
};
use polis_curator::membership::Members;
use polis_curator::{Curator, LeaderState, LeadershipTiming, NodeRecord, Settings, State, layout};
use polis_identity::{
    AuthorityCertificate, Certificate, NodeId, NodeKey, PeerAddress, PublicKey, RevocationList,
    verify_certificate_authority,
};
use polis_proto::common::NodeStatus;
use polis_proto::common::node_roles::ConsensusMember;
use polis_rpc::ServerIdentity;
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tempfile::TempDir;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{self, Etcd, PATIENCE, free_address};

/// Time between two looks at the roles.
const LOOK: Duration = Duration::from_millis(10);

/// A node that is not the founder.
struct Other {
    key: NodeKey,
    certificate: Certificate,
    address: watch::Sender<Option<IpAddr>>,
    disk: Arc<dyn Disk>,
    running: Option<Running>,
    /// It does nothing about its role.
    broken: Arc<AtomicBool>,
    _directory: TempDir,
}

/// A member that runs.
#[derive(Clone)]
struct Running {
    consensus: Consensus,
    curator: Curator,
    harness: Arc<Harness>,
}

/// The nodes.
pub(crate) struct Town {
    pub(crate) founder: Etcd,
    authority: AuthorityCertificate,
    curator: Curator,
    harness: Harness,
    others: Arc<Mutex<BTreeMap<NodeId, Other>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Town {
    /// A founder that leads.
    pub(crate) async fn found() -> Self {
        let (founder, cluster) = Etcd::start_cluster().await;
        let identity =
            ServerIdentity::new(&founder.node_key, cluster.node_certificate, cluster.authority.clone()).unwrap();
        let (curator, harness) = run_curator(founder.consensus.clone(), identity, &founder.address);
        let others = Arc::default();
        let mut town = Self { founder, authority: cluster.authority, curator, harness, others, tasks: Vec::new() };
        town.tasks.push(tokio::spawn(serve_roles(
            Arc::clone(&town.others),
            town.founder.consensus.clone(),
            town.founder.node_id(),
            town.founder.address.borrow().unwrap(),
            town.authority.clone(),
        )));
        town.tasks.push(tokio::spawn(beat(Arc::clone(&town.others), town.curator.clone(), town.founder.node_id())));
        town.leader().await;
        town
    }

    /// A node that is UP.
    pub(crate) async fn add_node(&self) -> NodeId {
        let (key, address) = (NodeKey::generate(), free_address());
        let status = NodeStatus { external_address: address.to_string(), ..NodeStatus::default() };
        let record = NodeRecord { status: Some(status), ..common::record(&key) };
        let (leader, _) = self.leader().await;
        let transaction = Transaction::new().put(layout::node(&record.id), record.encode());
        leader.transact("test/node", transaction).await.unwrap();
        let revision = leader.node(&record.id).await.unwrap().unwrap().revision;
        let certificate = leader.issue_node_certificate("test/certificate", &key.public(), revision).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(HostDisk::open(directory.path()).unwrap()) as Arc<dyn Disk>;
        let layout = Layout::new(Arc::clone(&disk));
        layout.prepare_start().unwrap();
        layout.data.directory.create("test").unwrap();
        layout.data.etcd.directory.create("test").unwrap();
        layout.data.etcd.data.create("test").unwrap();
        let other = Other {
            key,
            certificate,
            address: watch::Sender::new(Some(address)),
            disk,
            running: None,
            broken: Arc::default(),
            _directory: directory,
        };
        self.others.lock().await.insert(record.id, other);
        self.introduce().await;
        record.id
    }

    pub(crate) async fn public_key(&self, node: NodeId) -> PublicKey {
        self.others.lock().await[&node].key.public()
    }

    /// Has a node do nothing about its role.
    pub(crate) async fn break_node(&self, node: NodeId) {
        self.others.lock().await[&node].broken.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn mend_node(&self, node: NodeId) {
        self.others.lock().await[&node].broken.store(false, Ordering::SeqCst);
    }

    /// Tells every member where all nodes are.
    async fn introduce(&self) {
        let others = self.others.lock().await;
        let peers = peers(&others, &self.founder);
        self.founder.consensus.set_peers(peers.clone());
        for running in others.values().filter_map(|other| other.running.as_ref()) {
            running.consensus.set_peers(peers.clone());
        }
    }

    async fn curators(&self) -> Vec<Curator> {
        let others = self.others.lock().await;
        let others = others.values().filter_map(|other| Some(other.running.as_ref()?.curator.clone()));
        std::iter::once(self.curator.clone()).chain(others).collect()
    }

    /// The state in the hands of the node that leads, and its view of the members; one that was just read.
    pub(crate) async fn leader(&self) -> (LeaderState, Members) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for curator in self.curators().await {
                let leading = curator.leadership().borrow().leader().cloned();
                if let Some(leader) = leading
                    && let Ok(Ok(_)) = timeout(Duration::from_secs(1), leader.get("nothing")).await
                {
                    return (leader, curator.members().clone());
                }
            }
            assert!(Instant::now() < deadline, "nobody leads\n{}", self.describe().await);
            sleep(LOOK).await;
        }
    }

    /// Calls `ask` with the leader until it succeeds.
    pub(crate) async fn with_leader<T, E: std::fmt::Debug>(
        &self,
        what: &str,
        mut ask: impl AsyncFnMut(LeaderState, Members) -> Result<T, E>,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (leader, members) = self.leader().await;
            match ask(leader, members).await {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(Instant::now() < deadline, "{what}: {error:?}\n{}", self.describe().await);
                    sleep(LOOK).await;
                }
            }
        }
    }

    pub(crate) async fn join(&self, node: NodeId) {
        self.with_leader("join", async |leader, members| members.enqueue_join(&leader, &node).await).await;
    }

    /// Takes the role, and waits until that is done.
    pub(crate) async fn leave(&self, node: NodeId) {
        self.with_leader("leave", async |leader, members| {
            let removal = members.request_removal(&leader, &node, "a test").await?;
            members.removed(&leader, &removal, Duration::from_secs(5)).await
        })
        .await;
    }

    /// Waits until exactly these are members with a vote, nothing is under way, and every record says so.
    pub(crate) async fn settled(&self, nodes: &[NodeId]) {
        let deadline = Instant::now() + PATIENCE;
        let mut wanted = nodes.to_vec();
        wanted.sort_unstable();
        loop {
            if self.is_settled(&wanted).await {
                return;
            }
            assert!(Instant::now() < deadline, "not settled with {wanted:?}\n{}", self.describe().await);
            sleep(LOOK).await;
        }
    }

    async fn is_settled(&self, wanted: &[NodeId]) -> bool {
        let (leader, members) = self.leader().await;
        let (Ok(status), Ok(records)) = tokio::join!(members.status(&leader), leader.nodes()) else { return false };
        let mut voters: Vec<NodeId> = Vec::new();
        for (member, node) in status.survey.members.iter().zip(&status.nodes) {
            if member.member.is_learner {
                return false;
            }
            voters.push(*node);
        }
        voters.sort_unstable();
        let with_role = records.iter().filter(|record| record.value.is_consensus_member());
        let with_role: Vec<NodeId> = with_role.map(|record| record.value.id).collect();
        let Ok(Some(list)) = leader.get_message(&layout::epoch()).await else { return false };
        let list = polis_unlock::SignedMemberList::verify(list.value, &self.authority).unwrap();
        let listed: Vec<NodeId> = list.list().members().iter().map(|member| member.node_id).collect();
        voters == wanted && with_role == wanted && listed == wanted && status.change.is_none()
    }

    /// The member on a node other than the founder.
    pub(crate) async fn consensus(&self, node: NodeId) -> Consensus {
        if node == self.founder.node_id() {
            return self.founder.consensus.clone();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(running) = &self.others.lock().await[&node].running {
                return running.consensus.clone();
            }
            assert!(Instant::now() < deadline, "{node} has no member");
            sleep(LOOK).await;
        }
    }

    /// Kills a node that is not the founder: it does not come back.
    pub(crate) async fn kill(&self, node: NodeId) {
        let mut others = self.others.lock().await;
        let other = others.get_mut(&node).unwrap();
        other.broken.store(true, Ordering::SeqCst);
        let running = other.running.take().expect("it runs");
        drop(others);
        let Running { consensus: _, curator: _, harness } = running;
        Arc::into_inner(harness).expect("only one has it").finish().await;
    }

    /// Whether a condition is raised on a node.
    pub(crate) async fn has_condition(&self, node: NodeId, name: &str) -> bool {
        let conditions = if node == self.founder.node_id() {
            self.harness.conditions().watch()
        } else {
            match &self.others.lock().await[&node].running {
                Some(running) => running.harness.conditions().watch(),
                None => return false,
            }
        };
        conditions.borrow().contains_key(name)
    }

    pub(crate) async fn describe(&self) -> String {
        let mut text = format!("founder {}:\n{}", self.founder.node_id(), self.harness.describe());
        text.push_str(&self.founder.harness().describe());
        for (node, other) in &*self.others.lock().await {
            if let Some(running) = &other.running {
                text.push_str(&format!("\n{node}: {:?}\n", *running.consensus.status().borrow()));
                text.push_str(&running.harness.describe());
            }
        }
        text
    }

    pub(crate) async fn stop(self) {
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
        let others = std::mem::take(&mut *self.others.lock().await);
        let running = others.into_values().filter_map(|other| other.running);
        let stopped = running.map(|running| {
            let Running { consensus: _, curator: _, harness } = running;
            Arc::into_inner(harness).expect("only one has it").finish()
        });
        futures::future::join_all(stopped).await;
        self.harness.finish().await;
        self.founder.stop().await;
    }
}

fn run_curator(
    consensus: Consensus,
    identity: ServerIdentity,
    address: &watch::Sender<Option<IpAddr>>,
) -> (Curator, Harness) {
    let timing = LeadershipTiming::default();
    let curator = Curator::new(Settings { consensus, identity, address: address.subscribe(), timing });
    let run = curator.clone();
    let harness = Harness::start(move |context: Context| {
        let run = run.clone();
        async move {
            context.run("curator", move |context: Context| run.run(context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    (curator, harness)
}

fn peers(others: &BTreeMap<NodeId, Other>, founder: &Etcd) -> PeerMap {
    let address = *founder.address.borrow();
    peers_with(others, PeerAddress::of(&founder.node_key.public()).ip(), address)
}

fn peers_with(others: &BTreeMap<NodeId, Other>, founder: Ipv6Addr, address: Option<IpAddr>) -> PeerMap {
    let entry = |key: Ipv6Addr, address: Option<IpAddr>| Some((key, SocketAddr::new(address?, PEER_PORT)));
    let others =
        others.values().filter_map(|other| entry(PeerAddress::of(&other.key.public()).ip(), *other.address.borrow()));
    others.chain(entry(founder, address)).collect()
}

/// What nodes do about their roles: a member and a curator while there is one, and none without.
async fn serve_roles(
    others: Arc<Mutex<BTreeMap<NodeId, Other>>>,
    founder: Consensus,
    founder_id: NodeId,
    founder_address: IpAddr,
    authority: AuthorityCertificate,
) {
    loop {
        sleep(LOOK).await;
        let known: Vec<Consensus> = {
            let others = others.lock().await;
            let running = others.values().filter_map(|other| Some(other.running.as_ref()?.consensus.clone()));
            std::iter::once(founder.clone()).chain(running).collect()
        };
        // Whoever answers; a node learns of its role by a stream that follows the leader.
        let mut records = None;
        for consensus in known {
            if consensus.status().borrow().is_ready()
                && let Ok(Ok(found)) = timeout(Duration::from_secs(1), State::new(consensus.kv_root()).nodes()).await
            {
                records = Some(found);
                break;
            }
        }
        let Some(records) = records else { continue };
        let founder_key = records.iter().find(|record| record.value.id == founder_id).map(|it| it.value.public_key);
        let mut locked = others.lock().await;
        let founder_ip = founder_key.map(|key| PeerAddress::of(&key).ip());
        let peers = founder_ip.map(|ip| peers_with(&locked, ip, Some(founder_address))).unwrap_or_default();
        for record in records {
            let Some(other) = locked.get_mut(&record.value.id) else { continue };
            if other.broken.load(Ordering::SeqCst) {
                continue;
            }
            match (&record.value.roles.consensus_member, &other.running) {
                (Some(role), None) => {
                    other.running = Some(start(other, role, peers.clone(), &authority));
                }
                (Some(_), Some(running)) if running.consensus.status().borrow().phase == Phase::Removed => {
                    stop(other).await;
                }
                (None, Some(_)) => stop(other).await,
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
    }
}

fn start(other: &Other, role: &ConsensusMember, peers: PeerMap, authority: &AuthorityCertificate) -> Running {
    let peer_authority = Certificate::from_der(role.ca_certificate.clone()).unwrap();
    let peer_authority = verify_certificate_authority(peer_authority).unwrap();
    let pki = PeerPki::issued(
        peer_authority.clone(),
        RevocationList::read(role.initial_crl.clone(), &peer_authority).unwrap(),
        Certificate::from_der(role.peer_certificate.clone()).unwrap(),
        &other.key,
    );
    let member = |peer: &polis_proto::common::node_roles::consensus_member::Peer| Member {
        id: 0,
        node_id: peer.name.parse().ok(),
        address: parse_peer_url(&peer.url),
        is_learner: false,
        is_started: true,
    };
    let consensus = Consensus::new(Configuration {
        etcd: common::etcd(),
        public_key: other.key.public(),
        pki,
        address: other.address.subscribe(),
        disk: Arc::clone(&other.disk),
        start: Start::Join(Arc::new(Fixed(role.peers.iter().map(member).collect()))),
        timing: Timing::Network(Pace::default()),
    })
    .unwrap();
    consensus.set_peers(peers);
    let identity = ServerIdentity::new(&other.key, other.certificate.clone(), authority.clone()).unwrap();
    let curator = Curator::new(Settings {
        consensus: consensus.clone(),
        identity,
        address: other.address.subscribe(),
        timing: LeadershipTiming::default(),
    });
    let (member, follower) = (consensus.clone(), curator.clone());
    let harness = Harness::start(move |context: Context| {
        let (member, follower) = (member.clone(), follower.clone());
        async move {
            context.run("consensus", move |context: Context| member.run(context))?;
            context.run("curator", move |context: Context| follower.run(context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    Running { consensus, curator, harness: Arc::new(harness) }
}

async fn stop(other: &mut Other) {
    if let Some(Running { consensus: _, curator: _, harness }) = other.running.take() {
        Arc::into_inner(harness).expect("only one has it").finish().await;
        set_aside(&other.disk).unwrap();
    }
}

/// All nodes are healthy in the eyes of whoever leads.
async fn beat(others: Arc<Mutex<BTreeMap<NodeId, Other>>>, founder: Curator, founder_id: NodeId) {
    loop {
        {
            let others = others.lock().await;
            let running = others.values().filter_map(|other| Some(other.running.as_ref()?.curator.clone()));
            for curator in std::iter::once(founder.clone()).chain(running) {
                for node in others.keys().chain([&founder_id]) {
                    curator.heartbeats().stamp(*node, Instant::now());
                }
            }
        }
        sleep(LOOK).await;
    }
}

struct Fixed(Vec<Member>);

impl FetchMembers for Fixed {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<Member>, BoxError>> {
        async { Ok(self.0.clone()) }.boxed()
    }
}
