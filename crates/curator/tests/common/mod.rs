//! One real etcd with a cluster in it, for tests of what stands on top.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use polis_consensus::{
    Configuration, Consensus, EtcdBinary, KvError, Namespaced, PeerPki, Start, Status, Timing, Transaction,
};
use polis_curator::{
    Birth, Cluster, ClusterStore, Creation, Entry, LeaderState, NodeRecord, PeerAuthority, Seen, State, StoreError,
    claim, create_cluster, layout,
};
use polis_identity::{JoinKey, NodeId, NodeKey, OwnerKey, PeerAddress, ShareKey};
use polis_parameters::Labels;
use polis_proto::common::{ClusterConfiguration, NodeRoles, NodeState, NodeTpmUsage};
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _, SharedRunnable};
use tempfile::TempDir;
use tokio::sync::watch;

/// Patience with what should take a fraction of a second, also on a machine that does other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A first node with a real etcd, and what a test runs beside it.
pub(crate) struct Etcd {
    pub(crate) node_key: NodeKey,
    pub(crate) join_key: JoinKey,
    pub(crate) share_key: ShareKey,
    pub(crate) owner: OwnerKey,
    pub(crate) address: watch::Sender<Option<IpAddr>>,
    pub(crate) consensus: Consensus,
    pki: PeerPki,
    harness: Harness,
    // Last, so that it goes when nothing uses it any more.
    directory: TempDir,
}

impl Etcd {
    /// Starts an etcd without anything in it, with these runnables beside it, which are made from its handle.
    pub(crate) async fn start_with(
        runnables: impl FnOnce(&Consensus, &NodeKey) -> Vec<(String, SharedRunnable)>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(HostDisk::open(directory.path()).unwrap()) as Arc<dyn Disk>;
        let layout = Layout::new(Arc::clone(&disk));
        layout.prepare_start().unwrap();
        layout.data.directory.create("test").unwrap();
        layout.data.etcd.directory.create("test").unwrap();
        layout.data.etcd.data.create("test").unwrap();
        let address = watch::Sender::new(Some(free_address()));
        let node_key = NodeKey::generate();
        let pki = PeerPki::load_or_found(&layout.data.etcd.credentials, &node_key).unwrap();
        let consensus = Consensus::new(Configuration {
            etcd: etcd(),
            public_key: node_key.public(),
            pki: pki.clone(),
            address: address.subscribe(),
            disk,
            start: Start::Found,
            timing: Timing::Alone,
        })
        .unwrap();
        let (run, beside) = (consensus.clone(), runnables(&consensus, &node_key));
        let harness = Harness::start(move |context: Context| {
            let (run, beside) = (run.clone(), beside.clone());
            async move {
                context.run("consensus", move |context: Context| run.run(context))?;
                for (name, runnable) in beside {
                    context.run(name, runnable)?;
                }
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        let etcd = Self {
            node_key,
            join_key: JoinKey::generate(),
            share_key: ShareKey::generate(),
            owner: OwnerKey::generate(),
            address,
            consensus,
            pki,
            harness,
            directory,
        };
        etcd.within("etcd is ready", etcd.consensus.ready()).await;
        etcd
    }

    /// Starts an etcd without anything in it.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_, _| Vec::new()).await
    }

    /// Starts an etcd, with a cluster in it.
    pub(crate) async fn start_cluster() -> (Self, Cluster) {
        let etcd = Self::start().await;
        let cluster = etcd.give_birth().await;
        (etcd, cluster)
    }

    /// Creates the cluster, as its first node does.
    pub(crate) async fn give_birth(&self) -> Cluster {
        let key = self.pki.authority().unwrap().key().pkcs8_der();
        let birth = Birth {
            node_key: &self.node_key,
            join_key: &self.join_key,
            share_key: &self.share_key.public(),
            address: *self.address.borrow(),
            owner: &self.owner.public(),
            configuration: &ClusterConfiguration { cluster_domain: "cluster.internal".into(), ..Default::default() },
            labels: &Labels::default(),
            tpm_usage: NodeTpmUsage::NotPresent,
            cluster_unlock_key: None,
            recovery_key: None,
            peers: PeerAuthority {
                key: Some(&key),
                certificate: self.pki.authority_certificate().der(),
                revocation_list: self.pki.revocations().der(),
                member_certificate: self.pki.certificate().der(),
                member_url: &format!("https://[{}]:7834", PeerAddress::of(&self.node_key.public())),
            },
        };
        create_cluster(&EtcdStore(self.root()), "birth", &birth).await.unwrap()
    }

    pub(crate) fn node_id(&self) -> NodeId {
        NodeId::of(&self.node_key.public())
    }

    pub(crate) fn root(&self) -> Namespaced {
        self.consensus.kv_root()
    }

    pub(crate) fn state(&self) -> State {
        State::new(self.root())
    }

    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.consensus.status()
    }

    /// Claims the leadership for this node, whoever has it.
    pub(crate) async fn lead(&self) -> LeaderState {
        self.lead_as(&self.node_id()).await
    }

    /// Claims the leadership for a node, whoever has it.
    pub(crate) async fn lead_as(&self, node: &NodeId) -> LeaderState {
        let present = self.root().get(layout::leader()).await.unwrap().map_or(0, |pair| pair.mod_revision);
        let raft_term = self.status().borrow().raft_term;
        claim(&self.state(), node, raft_term, Seen { claim: present, alive: None }).await.unwrap().0
    }

    /// Has etcd forget what was before `revision`.
    pub(crate) fn compact(&self, revision: i64) {
        let etcdctl = etcd_binary().with_file_name("etcdctl");
        let output = std::process::Command::new(etcdctl)
            .current_dir(self.directory.path().join("ephemeral/consensus"))
            .args(["--endpoints", "unix://client.sock:0", "compact", &revision.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The output of `future`, which should come within a moment.
    #[track_caller]
    pub(crate) fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
        let place = std::panic::Location::caller();
        async move {
            match tokio::time::timeout(PATIENCE, future).await {
                Ok(output) => output,
                Err(_) => panic!("{place}: not within {PATIENCE:?}: {what}\n{}", self.harness.describe()),
            }
        }
    }

    pub(crate) fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Stops everything, and sees that nothing is left.
    pub(crate) async fn stop(self) {
        let process_id = self.status().borrow().process_id;
        self.harness.finish().await;
        if let Some(process_id) = process_id {
            assert!(!Path::new(&format!("/proc/{process_id}")).exists(), "etcd outlives its supervisor");
        }
    }
}

/// A node that is UP, with nothing special about it.
pub(crate) fn record(key: &NodeKey) -> NodeRecord {
    NodeRecord {
        id: NodeId::of(&key.public()),
        public_key: key.public(),
        state: NodeState::Up,
        roles: NodeRoles::default(),
        status: None,
        join_key: JoinKey::generate().public(),
        cluster_unlock_key: None,
        clusternet: None,
        tpm_usage: NodeTpmUsage::NotPresent,
        labels: Labels::default(),
    }
}

/// An address of this test alone: the middle from the process, the end from a counter.
pub(crate) fn free_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let middle = u8::try_from((process >> 8) % 200 + 1).unwrap();
    Ipv4Addr::new(127, middle, process.to_le_bytes()[0], NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// The real etcd.
pub(crate) fn etcd() -> EtcdBinary {
    let path = std::env::var_os("PATH");
    EtcdBinary::find(Some(&etcd_binary()), path.as_deref())
        .unwrap_or_else(|_| panic!("there is no etcd to test with; run: scripts/setup test"))
}

fn etcd_binary() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/etcd/usr/bin/etcd");
    std::env::var_os("POLIS_ETCD").map_or(unpacked, PathBuf::from)
}

/// The whole key space of etcd as the store of the cluster's state.
struct EtcdStore(Namespaced);

#[async_trait]
impl ClusterStore for EtcdStore {
    async fn create(&self, site: &'static str, entries: Vec<Entry>) -> Result<Creation, StoreError> {
        let transaction = entries.into_iter().fold(Transaction::new(), |transaction, Entry { key, value }| {
            transaction.if_absent(key.clone()).put(key, value)
        });
        match self.0.transact(site, transaction).await {
            Ok(_) => Ok(Creation::Created),
            Err(KvError::PreconditionFailed { .. }) => Ok(Creation::Exists),
            Err(error) => Err(StoreError { operation: "a transaction", source: error.into() }),
        }
    }

    async fn put(&self, site: &'static str, entry: Entry) -> Result<(), StoreError> {
        let put = self.0.put(site, entry.key, entry.value).await;
        put.map(|_| ()).map_err(|error| StoreError { operation: "a write", source: error.into() })
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.0.get(key).await;
        let found = found.map_err(|error| StoreError { operation: "a read", source: error.into() })?;
        Ok(found.map(|found| found.value))
    }
}
