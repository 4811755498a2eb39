//! A cluster whose nodes are nothing but their unlock service: each has a port, keys, an unlock file and data that one key opens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use polis_identity::{CertificateAuthority, JoinKey, NodeId, NodeKey, PublicKey, ShareKey};
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_proto::unlock::{GetLockRequest, GetLockResponse};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, KeyIdentity, listen};
use polis_secret::Secret32;
use polis_supervisor::testing::Harness;
use polis_supervisor::{BoxError, Context, RunnableResult, runnable};
use polis_unlock::{
    ClusterUnlockKey, ClusterWord, Epoch, Floors, Hpke, MemberEntry, MemberList, Proof, SignedMemberList, Standing,
    UnlockFile, split,
};
use polis_unlock_service::{
    Contacts, CurrentKeys, HolderSettings, KnownAddresses, KnownMembers, Lock, Members, Oneself, OpenError, Opener,
    Owner, RecoverError, Recovery, RecoveryAnswer, Store, Surroundings, UnlockServer, UnlockStatus, unlock,
};
use tokio::sync::watch;
use tonic::transport::Channel;

/// How long a test waits for what should take well under a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Within which all are to be open once enough are there: 5 s (cold-start.md, Tests), and four times that where many tests run at once
/// on a machine that does other things beside.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(20);

/// Keys of one node, and where it listens.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) public_key: PublicKey,
    pub(crate) join_key: JoinKey,
    pub(crate) share_key: ShareKey,
    /// The cluster's half of the key of its data.
    pub(crate) key: ClusterUnlockKey,
    pub(crate) address: SocketAddr,
}

impl Node {
    fn generate(port: u16) -> Self {
        let public_key = NodeKey::generate().public();
        Self {
            id: NodeId::of(&public_key),
            public_key,
            join_key: JoinKey::generate(),
            share_key: ShareKey::generate(),
            key: ClusterUnlockKey::new(Secret32::random()),
            address: SocketAddr::new(own_address().into(), port),
        }
    }

    fn entry(&self) -> MemberEntry {
        MemberEntry {
            node_id: self.id,
            public_key: self.public_key,
            join_key: self.join_key.public(),
            share_key: Some(self.share_key.public()),
            addresses: Vec::new(),
            standing: Standing::Stays,
        }
    }

    /// A channel of somebody with this key to this node.
    pub(crate) fn channel(&self, shown: &JoinKey) -> Channel {
        let identity = KeyIdentity::new(shown).client_identity();
        Connector::new(&identity, ExpectedServer::Key(self.join_key.public())).channel(self.address)
    }

    /// What anybody is told of its lock.
    pub(crate) async fn lock(&self) -> GetLockResponse {
        let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
        let mut client = UnlockClient::new(connector.channel(self.address));
        client.get_lock(GetLockRequest {}).await.unwrap().into_inner()
    }
}

/// An address that no other node of these tests has.
fn own_address() -> Ipv4Addr {
    static LAST: AtomicU16 = AtomicU16::new(0);
    let [high, low] = LAST.fetch_add(1, Ordering::SeqCst).to_be_bytes();
    Ipv4Addr::new(127, 11, high, low)
}

/// An address at which nobody listens, and nobody will by chance: the port is the system's choice.
pub(crate) fn free_address(ip: Ipv4Addr) -> SocketAddr {
    std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// A cluster.
pub(crate) struct World {
    pub(crate) authority: CertificateAuthority,
    pub(crate) nodes: Vec<Node>,
    pub(crate) list: SignedMemberList,
    pub(crate) addresses: watch::Sender<Arc<KnownAddresses>>,
    pub(crate) running: Arc<RunningCluster>,
}

/// The cluster, as those of its nodes know it that run with quorum.
#[derive(Default)]
pub(crate) struct RunningCluster {
    pub(crate) nodes: Mutex<BTreeSet<NodeId>>,
    pub(crate) keys: Mutex<BTreeMap<NodeId, ClusterWord>>,
    /// How often any node was asked for a key.
    pub(crate) asked: AtomicUsize,
}

impl World {
    pub(crate) fn new(size: usize) -> Self {
        let authority = CertificateAuthority::generate(polis_identity::CLUSTER_AUTHORITY_NAME);
        let port = free_address(Ipv4Addr::new(127, 11, 255, 1)).port();
        let nodes: Vec<Node> = (0..size).map(|_| Node::generate(port)).collect();
        let list = list(&authority, Epoch::FIRST, &nodes);
        let addresses = nodes.iter().map(|node| (node.id, vec![node.address])).collect();
        let running = RunningCluster::default();
        running.keys.lock().unwrap().extend(nodes.iter().map(|node| (node.id, ClusterWord::Key(node.key.clone()))));
        Self { authority, nodes, list, addresses: watch::Sender::new(Arc::new(addresses)), running: Arc::new(running) }
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// One more node, which is on no list.
    pub(crate) fn add(&mut self) -> Node {
        let node = Node::generate(self.node(0).address.port());
        self.nodes.push(node.clone());
        self.addresses.send_modify(|addresses| {
            Arc::make_mut(addresses).insert(node.id, vec![node.address]);
        });
        node
    }

    /// A list of all nodes of a later epoch.
    pub(crate) fn later_list(&self) -> SignedMemberList {
        list(&self.authority, Epoch::FIRST.next(), &self.nodes)
    }

    /// The unlock file of a node for a list.
    pub(crate) fn file(&self, node: &Node, list: &SignedMemberList) -> UnlockFile {
        let current = split(&node.id, &node.key, list.list(), &Hpke, &mut rand::rng()).unwrap();
        UnlockFile { cluster: *list.list().cluster_id(), owner: node.id, current, pending: None }
    }

    /// Starts a node that is locked.
    pub(crate) fn start(&self, index: usize) -> Running {
        self.start_with(index, &self.list, |_| {})
    }

    /// Starts a node that is locked, has this list, and differs in this.
    pub(crate) fn start_with(&self, index: usize, list: &SignedMemberList, change: impl FnOnce(&mut Parts)) -> Running {
        let node = self.node(index).clone();
        // A member has not split its key anew for a list of which it has only just heard.
        let split_for = if self.list.list().member(&node.id).is_some() { &self.list } else { list };
        let store = Arc::new(TestStore::default());
        let highest = Some(list.list().epoch());
        let known = KnownMembers { list: Some(list.clone()), highest, floors: Floors::default() };
        let members = Members::new(node.id, Arc::clone(&store) as Arc<dyn Store>, known);
        let lock = watch::Sender::new(Lock::Locked);
        let status = watch::Sender::new(Arc::new(UnlockStatus::default()));
        let contacts = Contacts::default();
        let identity = KeyIdentity::new(&node.join_key);
        let authority = self.authority.certificate().clone();
        let server = UnlockServer {
            identity: identity.clone(),
            oneself: Oneself { id: Some(node.id), cluster: Some(authority.cluster_id()), fingerprint: "ab".into() },
            holder: Some(HolderSettings {
                id: node.id,
                authority: authority.clone(),
                share_key: node.share_key.clone(),
                members: members.clone(),
                contacts: contacts.clone(),
                keys: Arc::new(WordOf(Arc::clone(&self.running), node.id)),
            }),
            lock: lock.subscribe(),
            status: status.subscribe(),
            recovery: Arc::new(NoRecovery),
        };
        let mut parts = Parts {
            listen: node.address,
            server,
            surroundings: Surroundings {
                identity,
                from: Some(node.address.ip()),
                members: members.clone(),
                contacts,
                addresses: self.addresses.subscribe(),
                port: node.address.port(),
                status: status.clone(),
            },
            owner: Owner { id: node.id, authority, file: Some(self.file(&node, split_for)) },
            opener: TestOpener { key: node.key.clone(), tried: Vec::new() },
        };
        change(&mut parts);
        let surroundings = parts.surroundings.clone();
        let opened = watch::Sender::new(None);
        let (opens, began) = (opened.clone(), Instant::now());
        let harness = Harness::start(runnable(move |context| run(context, parts.clone(), lock.clone(), opens.clone())));
        Running {
            node,
            began,
            harness,
            status: status.subscribe(),
            opened: opened.subscribe(),
            members,
            store,
            surroundings,
        }
    }
}

async fn run(
    context: Context,
    parts: Parts,
    lock: watch::Sender<Lock>,
    opened: watch::Sender<Option<Opened>>,
) -> RunnableResult {
    let Parts { listen: address, server, surroundings, owner, mut opener } = parts;
    let listener = listen(address)?;
    context.spawn(server.serve(context.clone(), listener));
    context.healthy();
    let proof = context.unless_cancelled(unlock(&surroundings, owner, &mut opener)).await??;
    lock.send_replace(Lock::Open);
    opened.send_replace(Some(Opened { at: Instant::now(), proof, tried: opener.tried.len() }));
    Err(context.cancelled().await.into())
}

pub(crate) fn list(authority: &CertificateAuthority, epoch: Epoch, nodes: &[Node]) -> SignedMemberList {
    let entries = nodes.iter().map(Node::entry).collect();
    MemberList::new(authority.certificate().cluster_id(), epoch, entries).with_two_confirmed(true).sign(authority)
}

/// What a node is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) listen: SocketAddr,
    pub(crate) server: UnlockServer,
    pub(crate) surroundings: Surroundings,
    pub(crate) owner: Owner,
    pub(crate) opener: TestOpener,
}

/// How a node was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) at: Instant,
    pub(crate) proof: Proof,
    /// How many keys were tried.
    pub(crate) tried: usize,
}

/// A node that runs.
pub(crate) struct Running {
    pub(crate) node: Node,
    pub(crate) began: Instant,
    harness: Harness,
    pub(crate) status: watch::Receiver<Arc<UnlockStatus>>,
    pub(crate) opened: watch::Receiver<Option<Opened>>,
    pub(crate) members: Members,
    pub(crate) store: Arc<TestStore>,
    pub(crate) surroundings: Surroundings,
}

impl Running {
    /// Waits until it is open.
    pub(crate) async fn open(&self) -> Opened {
        let mut opened = self.opened.clone();
        let wait = opened.wait_for(Option::is_some);
        let opened = tokio::time::timeout(PATIENCE, wait).await;
        let Ok(opened) = opened else { panic!("not open: {}", self.status.borrow().describe()) };
        opened.unwrap().unwrap()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened.borrow().is_some()
    }

    /// Waits until its status is so.
    pub(crate) async fn wait_status(&self, what: &str, is_so: impl Fn(&UnlockStatus) -> bool) -> Arc<UnlockStatus> {
        let mut status = self.status.clone();
        let found = tokio::time::timeout(PATIENCE, status.wait_for(|status| is_so(status))).await;
        match found {
            Ok(found) => Arc::clone(&found.unwrap()),
            Err(_) => panic!("not within {PATIENCE:?}: {what}; {}", self.status.borrow().describe()),
        }
    }

    pub(crate) async fn finish(self) {
        self.harness.finish().await;
    }
}

/// Stops all of them.
pub(crate) async fn finish(nodes: impl IntoIterator<Item = Running>) {
    for node in nodes {
        node.finish().await;
    }
}

/// Waits until all are open. Returns how long that took after the last one started.
pub(crate) async fn all_open(nodes: &[Running]) -> Duration {
    let began = nodes.iter().map(|node| node.began).max().unwrap();
    let mut last = began;
    for node in nodes {
        last = last.max(node.open().await.at);
    }
    last.duration_since(began)
}

/// Data that this key opens.
#[derive(Clone)]
pub(crate) struct TestOpener {
    pub(crate) key: ClusterUnlockKey,
    pub(crate) tried: Vec<ClusterUnlockKey>,
}

#[async_trait]
impl Opener for TestOpener {
    type Opened = Proof;

    async fn open(&mut self, key: &ClusterUnlockKey, proof: Proof) -> Result<Proof, OpenError> {
        self.tried.push(key.clone());
        if *key == self.key { Ok(proof) } else { Err(OpenError::NotTheKey) }
    }
}

struct WordOf(Arc<RunningCluster>, NodeId);

#[async_trait]
impl CurrentKeys for WordOf {
    async fn word(&self, owner: NodeId) -> ClusterWord {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if !self.0.nodes.lock().unwrap().contains(&self.1) {
            return ClusterWord::Unavailable;
        }
        self.0.keys.lock().unwrap().get(&owner).cloned().unwrap_or(ClusterWord::NotUp)
    }
}

/// Remembers what was stored.
#[derive(Default)]
pub(crate) struct TestStore {
    pub(crate) lists: Mutex<Vec<Epoch>>,
    pub(crate) fails: AtomicBool,
}

#[async_trait]
impl Store for TestStore {
    async fn store_list(&self, list: &SignedMemberList) -> Result<(), BoxError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err("the ESP is full".into());
        }
        self.lists.lock().unwrap().push(list.list().epoch());
        Ok(())
    }

    async fn store_floors(&self, _: &Floors) -> Result<(), BoxError> {
        if self.fails.load(Ordering::SeqCst) { Err("the ESP is full".into()) } else { Ok(()) }
    }
}

struct NoRecovery;

#[async_trait]
impl Recovery for NoRecovery {
    async fn offer(&self) -> Result<Vec<u8>, String> {
        Err("there is no recovery key".into())
    }

    async fn recover(&self, _: RecoveryAnswer) -> Result<String, RecoverError> {
        Err(RecoverError::NothingOffered("there is no recovery key".into()))
    }
}
