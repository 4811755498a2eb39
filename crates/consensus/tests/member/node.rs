//! A node of a test: its disk, its key, its address, and its member under a supervisor.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::{
    BoxError, Configuration, Consensus, EtcdBinary, FetchMembers, Member, PEER_PORT, PeerMap, PeerPki, Phase,
    QUOTA_BYTES, Start, Status, Timing,
};
use polis_identity::{NodeKey, PeerAddress, PublicKey};
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

/// Patience with what should take a fraction of a second, also on a machine that does other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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

/// A node.
pub(crate) struct Node {
    pub(crate) key: NodeKey,
    pub(crate) disk: Arc<HostDisk>,
    pub(crate) layout: Layout,
    pub(crate) address: watch::Sender<Option<IpAddr>>,
    pub(crate) etcd: EtcdBinary,
    pub(crate) timing: Timing,
    /// Size of its database at which etcd takes no writes.
    pub(crate) quota_bytes: u64,
    /// Where it was before.
    pub(crate) former_addresses: Vec<IpAddr>,
    running: Option<(Consensus, Harness)>,
    // Last, so that it goes when nothing uses it any more.
    directory: TempDir,
}

impl Node {
    /// A node with an empty disk and an address of its own.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        Self::at(directory, &root)
    }

    /// What a copy of this node's root directory is on a machine with another address.
    pub(crate) fn copy(&self) -> Self {
        let mut copy = Self::new();
        copy.key = self.key.clone();
        copy.former_addresses = vec![self.ip()];
        copy_files(self.path(), copy.path());
        copy
    }

    /// The same, with a root that is named from the working directory, and so deep that the name means something else in
    /// etcd's.
    pub(crate) fn with_relative_root() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let depth = std::env::current_dir().unwrap().components().count();
        let deep = directory.path().join("deep/".repeat(depth));
        std::fs::create_dir_all(&deep).unwrap();
        let root = PathBuf::from("../".repeat(depth)).join(deep.strip_prefix("/").unwrap());
        Self::at(directory, &root)
    }

    fn at(directory: TempDir, root: &Path) -> Self {
        let disk = Arc::new(HostDisk::open(root).unwrap());
        let layout = Layout::new(Arc::clone(&disk) as Arc<dyn Disk>);
        layout.prepare_start().unwrap();
        layout.data.directory.create("test").unwrap();
        layout.data.etcd.directory.create("test").unwrap();
        layout.data.etcd.data.create("test").unwrap();
        let address = watch::Sender::new(Some(free_address()));
        let key = NodeKey::generate();
        Self {
            key,
            disk,
            layout,
            address,
            etcd: etcd(),
            timing: Timing::Alone,
            quota_bytes: QUOTA_BYTES,
            former_addresses: Vec::new(),
            running: None,
            directory,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.borrow().unwrap()
    }

    pub(crate) fn identity_address(&self) -> Ipv6Addr {
        PeerAddress::of(&self.public_key()).ip()
    }

    /// Its entry in the maps of the others' dialers.
    pub(crate) fn mapping(&self) -> (Ipv6Addr, SocketAddr) {
        (self.identity_address(), SocketAddr::new(self.ip(), PEER_PORT))
    }

    /// Starts it as a founder does.
    pub(crate) fn found(&mut self) {
        let pki = PeerPki::load_or_found(&self.layout.data.etcd.credentials, &self.key).unwrap();
        self.start(pki, Start::Found);
    }

    /// Starts it as a member that exists.
    pub(crate) fn restart(&mut self) {
        self.restart_as(Start::Existing);
    }

    pub(crate) fn restart_as(&mut self, start: Start) {
        let pki = PeerPki::load(&self.layout.data.etcd.credentials, &self.key).unwrap().unwrap();
        self.start(pki, start);
    }

    /// Stops it when its etcd has ended by itself.
    pub(crate) async fn stop_removed(&mut self) {
        let (consensus, harness) = self.running.take().expect("the node runs");
        harness.finish().await;
        assert_eq!(consensus.status().borrow().phase, Phase::Removed);
    }

    pub(crate) fn start(&mut self, pki: PeerPki, start: Start) {
        self.start_among(pki, start, &[]);
    }

    /// Starts it, and tells it and these others where all of them are.
    pub(crate) fn start_among(&mut self, pki: PeerPki, start: Start, others: &[&Self]) {
        assert!(self.running.is_none(), "a node runs once at a time");
        let consensus = Consensus::new(Configuration {
            etcd: self.etcd.clone(),
            public_key: self.public_key(),
            pki,
            address: self.address.subscribe(),
            disk: Arc::clone(&self.disk) as Arc<dyn Disk>,
            start,
            timing: self.timing,
        })
        .unwrap();
        let all = others.iter().copied().chain([&*self]).filter(|node| node.address.borrow().is_some());
        let peers: PeerMap = all.map(Self::mapping).collect();
        consensus.set_quota(self.quota_bytes);
        consensus.set_former_addresses(self.former_addresses.clone());
        for known in others.iter().filter_map(|other| Some(&other.running.as_ref()?.0)).chain([&consensus]) {
            known.set_peers(peers.clone());
        }
        let run = consensus.clone();
        let harness = Harness::start(move |context: Context| {
            let run = run.clone();
            async move {
                context.run("consensus", move |context: Context| run.run(context))?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        self.running = Some((consensus, harness));
    }

    pub(crate) fn consensus(&self) -> &Consensus {
        &self.running.as_ref().expect("the node runs").0
    }

    pub(crate) fn harness(&self) -> &Harness {
        &self.running.as_ref().expect("the node runs").1
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?}\n{}", *self.consensus().status().borrow(), self.harness().describe())
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn wait_for(&self, what: &str, wanted: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.consensus().status();
        match timeout(PATIENCE, status.wait_for(wanted)).await {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!("not {what} within {PATIENCE:?}\n{}", self.describe()),
        }
    }

    pub(crate) async fn ready(&self) -> Status {
        self.wait_for("ready", Status::is_ready).await
    }

    /// Waits until the condition is raised, and returns its message.
    pub(crate) async fn wait_condition(&self, name: &str) -> String {
        let mut conditions = self.harness().conditions().watch();
        match timeout(PATIENCE, conditions.wait_for(|all| all.contains_key(name))).await {
            Ok(all) => all.unwrap()[name].message.clone(),
            Err(_) => panic!("{name} was not raised within {PATIENCE:?}\n{}", self.describe()),
        }
    }

    /// Waits until the condition is not raised.
    pub(crate) async fn wait_no_condition(&self, name: &str) {
        let mut conditions = self.harness().conditions().watch();
        if timeout(PATIENCE, conditions.wait_for(|all| !all.contains_key(name))).await.is_err() {
            panic!("{name} was not cleared within {PATIENCE:?}\n{}", self.describe());
        }
    }

    /// Waits until the condition is raised with a message that contains `part`.
    pub(crate) async fn wait_for_message(&self, name: &str, part: &str) {
        let mut conditions = self.harness().conditions().watch();
        let wanted = conditions.wait_for(|all| all.get(name).is_some_and(|condition| condition.message.contains(part)));
        if timeout(PATIENCE, wanted).await.is_err() {
            panic!("{name} did not say {part:?} within {PATIENCE:?}\n{}", self.describe());
        }
    }

    /// Waits until `holds`, which is asked every few milliseconds.
    pub(crate) async fn wait_until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let wait = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, wait).await.is_err() {
            panic!("not {what} within {PATIENCE:?}\n{}", self.describe());
        }
    }

    /// A client of another make, for what ours does not offer.
    pub(crate) async fn raw_client(&self) -> etcd_client::Client {
        let socket = self.layout.ephemeral.consensus.client_socket.full_path();
        let connector = tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
        });
        let channel = tonic::transport::Endpoint::from_static("http://etcd").connect_with_connector_lazy(connector);
        etcd_client::Client::from_channel(etcd_client::Channel::Tonic(channel), None).await.unwrap()
    }

    /// Process id of its etcd.
    pub(crate) fn process_id(&self) -> u32 {
        self.consensus().status().borrow().process_id.expect("etcd runs")
    }

    /// Kills its etcd, as the kernel does when memory is short.
    pub(crate) fn kill_etcd(&self) {
        self.signal_etcd(rustix::process::Signal::KILL);
    }

    pub(crate) fn signal_etcd(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_raw(self.process_id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// Stops it in order, and sees that nothing of it is left.
    pub(crate) async fn stop(&mut self) {
        let (consensus, harness) = self.running.take().expect("the node runs");
        let process_id = consensus.status().borrow().process_id;
        harness.finish().await;
        if let Some(process_id) = process_id {
            assert!(!Path::new(&format!("/proc/{process_id}")).exists(), "etcd outlives its supervisor");
        }
        assert_eq!(consensus.status().borrow().phase, Phase::Down);
    }
}

/// Tells the dialers of all nodes that run where all nodes are.
pub(crate) fn introduce(nodes: &[&Node]) {
    let peers: PeerMap = nodes.iter().map(|node| node.mapping()).collect();
    for (consensus, _) in nodes.iter().filter_map(|node| node.running.as_ref()) {
        consensus.set_peers(peers.clone());
    }
}

/// A joiner's source of the member list: the list itself.
pub(crate) struct FixedMembers(pub(crate) Vec<Member>);

impl FetchMembers for FixedMembers {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<Member>, BoxError>> {
        async { Ok(self.0.clone()) }.boxed()
    }
}

/// Copies all files below one directory to another; what is neither file nor directory is left.
fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_files(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
