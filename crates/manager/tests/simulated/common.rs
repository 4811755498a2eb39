//! A whole Manager on a simulated disk: real code above, a disk that can lose power below, a consensus member that is a file on
//! that disk, and beside it a cluster that others run.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use polis_condition::Condition;
use polis_curator::{ClusterStore, Creation, Entry, StoreError, layout};
use polis_manager::{
    ConsensusProvider, Manager, MemberSettings, Outcome, ParameterSource, Settings, State, WithoutData,
};
use polis_parameters::OWN_FILE_NAME;
use polis_proto::api::NodeParameters;
use polis_proto::api::node_parameters::ClusterRegister;
use polis_proto::api::node_parameters::{Cluster as ProtoCluster, ClusterBootstrap};
use polis_proto::common::ClusterConfiguration;
use polis_proto::common::ClusterDirectory;
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_proto::common::cluster_directory::{Node as DirectoryNode, node::Address};
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Image, Recording, SimulatedDisk};
use polis_storage::{DataGate, Disk, DiskPath, FILE_MODE, GuardedDisk, Layout, durable, read_if_present};
use polis_supervisor::{BoxError, Context, Supervisor, runnable};
use prost::Message as _;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::cluster::{Cluster, Script, Scripted};
use crate::partition::{Backends, Encrypted};

/// Site of the simulated member's own writes: what etcd syncs is etcd's business.
pub(crate) const SIMULATED_ETCD: &str = "simulated-etcd";

/// A member with this file has no vote.
pub(crate) const NO_VOTE: &str = "data/etcd/data/no-vote";

/// Simulated time after which a Manager that has not finished is stuck.
const STUCK: Duration = Duration::from_secs(3600);

/// Largest content of the simulated member.
const STORE_LIMIT: usize = 1 << 20;

/// Keys and values.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

/// Where the disk stood when a write was acknowledged, and what the store held then.
pub(crate) type Acknowledged = Arc<Mutex<Vec<(usize, Contents)>>>;

/// Starts members that keep everything in one file of the simulated disk.
pub(crate) struct SimulatedConsensus {
    disk: Arc<SimulatedDisk>,
    acknowledged: Acknowledged,
    /// Writes of single values that still panic instead of being done.
    panics: Arc<AtomicU32>,
    member: Mutex<Option<SimulatedMember>>,
    /// How often it was stopped because its data were lost.
    suspensions: Arc<AtomicU32>,
}

/// One such member; absent when its data are, and it must not make new ones.
pub(crate) type SimulatedMember = Option<Arc<SimulatedStore>>;

pub(crate) struct SimulatedStore {
    disk: Arc<SimulatedDisk>,
    path: DiskPath,
    contents: Mutex<Contents>,
    acknowledged: Acknowledged,
    panics: Arc<AtomicU32>,
}

#[async_trait]
impl ConsensusProvider for SimulatedConsensus {
    type Member = SimulatedMember;

    async fn start(&self, _: &Context, settings: MemberSettings) -> Result<SimulatedMember, BoxError> {
        if let Some(member) = self.member() {
            return Ok(member);
        }
        let path = DiskPath::parse("data/etcd/data/simulated")?;
        let found = read_if_present(&*self.disk, &path, STORE_LIMIT)?;
        let contents = match (found, settings.without_data) {
            (Some(bytes), _) => Some(serde_json::from_slice(&bytes)?),
            (None, WithoutData::Found) => Some(Contents::new()),
            (None, WithoutData::Refuse) => None,
        };
        let member = match contents {
            None => None,
            Some(contents) => {
                let (disk, acknowledged, panics) = (self.disk.clone(), self.acknowledged.clone(), self.panics.clone());
                let store = SimulatedStore { disk, path, contents: Mutex::default(), acknowledged, panics };
                store.persist(contents)?;
                Some(Arc::new(store))
            }
        };
        *self.member.lock().unwrap() = Some(member.clone());
        Ok(member)
    }

    async fn ready(&self, member: &SimulatedMember) {
        if member.is_none() || self.has_no_vote() {
            std::future::pending::<()>().await;
        }
    }

    async fn without_vote(&self, _: &SimulatedMember) {
        if !self.has_no_vote() {
            std::future::pending::<()>().await;
        }
    }

    async fn suspend(&self) {
        *self.member.lock().unwrap() = None;
        self.suspensions.fetch_add(1, Ordering::SeqCst);
    }

    fn resume(&self) {}

    fn member(&self) -> Option<SimulatedMember> {
        self.member.lock().unwrap().clone()
    }

    fn store(&self, member: &SimulatedMember) -> Arc<dyn ClusterStore> {
        member.clone().expect("only a member with data is ready")
    }
}

impl SimulatedConsensus {
    /// Whether the member is one without a vote, which a file in its data tells.
    fn has_no_vote(&self) -> bool {
        let path = DiskPath::parse(NO_VOTE).unwrap();
        self.disk.metadata(&path).unwrap().is_some()
    }
}

impl SimulatedStore {
    /// Makes `contents` durable and then visible, as a transaction of etcd does.
    fn persist(&self, contents: Contents) -> Result<(), BoxError> {
        let bytes = serde_json::to_vec(&contents)?;
        durable::write(&*self.disk, SIMULATED_ETCD, &self.path, FILE_MODE, &bytes)?;
        *self.contents.lock().unwrap() = contents.clone();
        self.acknowledged.lock().unwrap().push((self.disk.position(), contents));
        Ok(())
    }
}

#[async_trait]
impl ClusterStore for SimulatedStore {
    async fn create(&self, _: &'static str, entries: Vec<Entry>) -> Result<Creation, StoreError> {
        let mut contents = self.contents.lock().unwrap().clone();
        if entries.iter().any(|entry| contents.contains_key(&entry.key)) {
            return Ok(Creation::Exists);
        }
        contents.extend(entries.into_iter().map(|entry| (entry.key, entry.value)));
        self.persist(contents).map_err(|source| StoreError { operation: "create", source })?;
        Ok(Creation::Created)
    }

    async fn put(&self, _: &'static str, entry: Entry) -> Result<(), StoreError> {
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "this write panics, as the test wants it");
        let mut contents = self.contents.lock().unwrap().clone();
        contents.insert(entry.key, entry.value);
        self.persist(contents).map_err(|source| StoreError { operation: "put", source })
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents.lock().unwrap().get(key).cloned())
    }
}

/// What a start of a node came to.
pub(crate) struct Life {
    /// Everything that was done to the disk.
    pub(crate) recording: Recording,
    /// How it ended, or nothing if it was stuck.
    pub(crate) outcome: Option<Outcome>,
    /// Id of the node, as far as it got one.
    pub(crate) node_id: Option<String>,
    /// Id of its cluster, as far as it got one.
    pub(crate) cluster_id: Option<String>,
    /// Whether it has said who it is.
    pub(crate) identified: bool,
    /// Conditions at the end.
    pub(crate) conditions: Vec<Condition>,
    /// Acknowledged writes of the member.
    pub(crate) acknowledged: Vec<(usize, Contents)>,
    /// What became of the cluster that others run, and where the disk stood then; the first entry is from before the start.
    pub(crate) clusters: Vec<(usize, Cluster)>,
}

impl Life {
    /// The condition with this name, if it is raised at the end.
    pub(crate) fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.name == name)
    }

    /// Whether the node came to Running.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Running(_)))
    }

    /// The disk at the end.
    pub(crate) fn end(&self) -> Image {
        self.recording.cuts().unwrap().pop().expect("a recording has an end").image()
    }

    /// The cluster that others run, as it was when the disk stood at `position`, with all that had happened by then.
    pub(crate) fn cluster_at(&self, position: usize) -> &Cluster {
        let at = self.clusters.iter().rfind(|(at, _)| *at <= position).unwrap_or(&self.clusters[0]);
        &at.1
    }

    /// The same at the end.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster_at(usize::MAX)
    }

    /// Whether what a running node without a member keeps on its disk agrees with what its cluster holds.
    pub(crate) fn fits_as_guest(&self) -> Result<(), String> {
        let layout = Layout::new(Arc::new(SimulatedDisk::new(self.end(), Vec::new())));
        let credentials = layout.data.node.credentials.load().unwrap().ok_or("a running node has no credentials")?;
        let cluster = self.cluster();
        cluster.has_one_node(&credentials)?;
        let journal =
            layout.journal_store(Seals::plain_only()).load().unwrap().ok_or("a running node has no journal")?;
        let journal = journal.value;
        if *journal.phase() != Phase::Enrolled || journal.node_key.is_some() {
            return Err("the journal of a running node is not that of a member".into());
        }
        if journal.parameters.windows(32).any(|bytes| bytes == cluster.ticket_secret()) {
            return Err("the register ticket is still in the journal".into());
        }
        if journal.cluster_ca.as_deref() != Some(&*credentials.ca_certificate) {
            return Err("the journal and the credentials have different CAs".into());
        }
        let directory = layout.esp.polis.cluster_directory.load();
        let directory = directory.map_err(|error| error.to_string())?.ok_or("a running node knows nobody")?;
        if !directory.value.nodes.iter().any(|node| node.node_id == cluster.leader().0.to_string()) {
            return Err("the directory does not have the leader".into());
        }
        match layout.data.node.roles.load() {
            Ok(Some(roles)) if roles.fault.is_none() && roles.value == polis_storage::LocalRoles::default() => Ok(()),
            Ok(_) => Err("a running node has no whole record of its roles".into()),
            Err(error) => Err(format!("the roles of a running node cannot be used: {error}")),
        }
    }

    /// Whether what a running node keeps on its disk agrees with what its cluster holds.
    pub(crate) fn fits_together(&self) -> Result<(), String> {
        let end = self.end();
        let (layout, contents) = (Layout::new(Arc::new(SimulatedDisk::new(end.clone(), Vec::new()))), contents(&end));
        let node_id = self.node_id.as_ref().and_then(|id| id.parse().ok()).ok_or("a running node has no id")?;
        let peers = layout.data.etcd.credentials.load().unwrap().ok_or("a running node has no peer credentials")?;
        let node = layout.data.node.credentials.load().unwrap().ok_or("a running node has no credentials")?;
        let pairs = [
            ("the peers' CA", &peers.ca_certificate, layout::peer_authority_certificate()),
            ("the member's certificate", &peers.member_certificate, layout::peer_certificate(&node_id)),
            ("the cluster's CA", &node.ca_certificate, layout::cluster_authority_certificate()),
            ("the node's certificate", &node.node_certificate, layout::node_certificate(&node_id)),
        ];
        for (name, on_disk, key) in pairs {
            if contents.get(&key) != Some(on_disk) {
                return Err(format!("{name} on the disk is not the one that the cluster holds"));
            }
        }
        if self.condition("roles-damaged").is_some() {
            return Err("the roles were lost".into());
        }
        match layout.data.node.roles.load() {
            Ok(Some(roles)) if roles.fault.is_none() => Ok(()),
            Ok(_) => Err("a running node has no whole record of its roles".into()),
            Err(error) => Err(format!("the roles of a running node cannot be used: {error}")),
        }
    }

    /// In words, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.outcome {
            None => {
                let names: Vec<_> = self.conditions.iter().map(|condition| &condition.name).collect();
                format!("stuck, with conditions {names:?}")
            }
            Some(Outcome::Running(node)) => format!("Running as {}", node.id),
            Some(Outcome::Failed(failure)) => format!("Failed: {}", polis_supervisor::with_causes(&**failure)),
        }
    }
}

/// Parameters of a cluster that protects nothing.
pub(crate) fn parameters() -> Vec<u8> {
    parameters_of(TpmMode::Disabled, StorageSecurityPolicy::NeedsInsecure)
}

/// Parameters of a cluster with these policies.
pub(crate) fn parameters_of(tpm_mode: TpmMode, storage: StorageSecurityPolicy) -> Vec<u8> {
    let configuration = ClusterConfiguration {
        cluster_domain: String::new(),
        tpm_mode: tpm_mode.into(),
        storage_security_policy: storage.into(),
        kubernetes: None,
    };
    let bootstrap = ClusterBootstrap {
        owner_public_key: polis_identity::OwnerKey::generate().public().as_bytes().to_vec(),
        initial_cluster_configuration: Some(configuration),
        labels: None,
    };
    NodeParameters { cluster: Some(ProtoCluster::ClusterBootstrap(bootstrap)), network_config: None }.encode_to_vec()
}

/// Parameters of a machine that asks this cluster, with this ticket, at this address.
pub(crate) fn register_parameters(cluster: &Cluster, ticket: &[u8], host: &str) -> Vec<u8> {
    let nodes = vec![DirectoryNode {
        id: polis_identity::NodeId::of(&polis_identity::NodeKey::generate().public()).to_string(),
        addresses: vec![Address { host: host.into() }],
    }];
    let register = ClusterRegister {
        cluster_directory: Some(ClusterDirectory { nodes }),
        register_ticket: ticket.to_vec(),
        ca_certificate: cluster.authority().der().to_vec(),
        labels: None,
    };
    NodeParameters { cluster: Some(ProtoCluster::ClusterRegister(register)), network_config: None }.encode_to_vec()
}

/// A parameters file outside of the simulated disk.
pub(crate) struct ParametersFile {
    directory: TempDir,
}

impl ParametersFile {
    /// One that makes a cluster.
    pub(crate) fn new() -> Self {
        Self::with(&parameters())
    }

    /// One with this content.
    pub(crate) fn with(parameters: &[u8]) -> Self {
        let file = Self { directory: tempfile::tempdir().unwrap() };
        file.replace(parameters);
        file
    }

    /// Changes its content.
    pub(crate) fn replace(&self, parameters: &[u8]) {
        std::fs::write(self.path(), parameters).unwrap();
    }

    /// Changes what is beside it.
    pub(crate) fn replace_own(&self, own: &[u8]) {
        std::fs::write(self.directory.path().join(OWN_FILE_NAME), own).unwrap();
    }

    /// Takes it away.
    pub(crate) fn remove(&self) {
        std::fs::remove_file(self.path()).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("parameters.pb")
    }

    pub(crate) fn source(&self) -> ParameterSource {
        let absent: PathBuf = self.directory.path().join("absent");
        // Not named by anybody, so that it may be gone at a later start.
        ParameterSource { file: None, firmware: self.path(), esp: absent }
    }
}

/// The machine that a node runs on, and what is done to it.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) seals: Seals,
    pub(crate) can_encrypt: bool,
    /// What happens once the node runs.
    pub(crate) then: Then,
}

/// What happens to a running node.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    Nothing,
    /// Its keys come into order.
    Settle,
    /// An operator has its key replaced.
    Rekey,
    /// Its keys come into order, something changes in the cluster, and its keys come into order for that.
    Change(fn(&mut Cluster)),
    /// The process behind its data partition dies.
    LoseData,
}

impl Default for Host {
    fn default() -> Self {
        Self { seals: Seals::plain_only(), can_encrypt: true, then: Then::Nothing }
    }
}

/// A Manager on this disk.
pub(crate) fn manager(
    disk: &Arc<SimulatedDisk>,
    parameters: ParameterSource,
    acknowledged: &Acknowledged,
    panics: u32,
    access: &Scripted,
) -> Manager<SimulatedConsensus> {
    manager_on(&Host::default(), disk, parameters, acknowledged, panics, access).0
}

/// A Manager on this disk of this host, and its encrypted partition.
pub(crate) fn manager_on(
    host: &Host,
    disk: &Arc<SimulatedDisk>,
    parameters: ParameterSource,
    acknowledged: &Acknowledged,
    panics: u32,
    access: &Scripted,
) -> (Manager<SimulatedConsensus>, Arc<Encrypted>, Arc<AtomicU32>) {
    let vault = disk.metadata(&DiskPath::parse("vault").unwrap()).unwrap();
    let gate = if vault.is_some() { DataGate::closed() } else { DataGate::open() };
    let backends = Backends::new(disk, &gate, host.can_encrypt);
    let encrypted = backends.encrypted();
    let settings = Settings {
        disk: Arc::new(GuardedDisk::new(disk.clone(), gate)),
        backends: Arc::new(backends),
        seals: host.seals.clone(),
        address: watch::Sender::new(Some(IpAddr::V4(Ipv4Addr::LOCALHOST))).subscribe(),
        peers: watch::Sender::new(Vec::new()).subscribe(),
        parameters,
        access: Arc::new(access.clone()),
    };
    let (disk, acknowledged, panics) = (disk.clone(), acknowledged.clone(), Arc::new(AtomicU32::new(panics)));
    let suspensions = Arc::<AtomicU32>::default();
    let consensus =
        SimulatedConsensus { disk, acknowledged, panics, member: Mutex::default(), suspensions: suspensions.clone() };
    (Manager::new(settings, consensus), encrypted, suspensions)
}

/// A simulated disk with this on it.
pub(crate) fn disk_with(image: Image) -> Arc<SimulatedDisk> {
    let fat = Layout::new(Arc::new(SimulatedDisk::default())).fat_directories();
    Arc::new(SimulatedDisk::new(image, fat))
}

/// Starts a node on a disk with this on it and waits until it runs, has failed or is stuck. Time is simulated. No cluster of others is
/// there for it.
pub(crate) fn live(image: Image, parameters: ParameterSource) -> Life {
    live_beside(image, parameters, Cluster::new(), Script::default())
}

/// Starts a node on a disk with this on it, beside this cluster, which does what this script says.
pub(crate) fn live_beside(image: Image, parameters: ParameterSource, cluster: Cluster, script: Script) -> Life {
    live_on(&Host::default(), image, parameters, cluster, script)
}

/// The same on this machine.
pub(crate) fn live_on(
    host: &Host,
    image: Image,
    parameters: ParameterSource,
    cluster: Cluster,
    script: Script,
) -> Life {
    let disk = disk_with(image);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        Layout::new(disk.clone()).prepare_start().unwrap();
        let acknowledged = Acknowledged::default();
        let access = Scripted::new(disk.clone(), cluster, script);
        let (manager, encrypted, suspensions) = manager_on(host, &disk, parameters, &acknowledged, 0, &access);
        let conditions = polis_condition::Conditions::default();
        let supervisor = match host.then {
            Then::Nothing | Then::LoseData => {
                Supervisor::builder().conditions(conditions.clone()).start(manager.runnable())
            }
            Then::Settle | Then::Rekey | Then::Change(_) => {
                let manager = manager.clone();
                let both = runnable(move |context: Context| {
                    let manager = manager.clone();
                    async move {
                        context.run("recovery-blob", manager.blob_keeper())?;
                        context.run("manager", manager.runnable())?;
                        context.run("keys", manager.key_keeper())?;
                        context.healthy();
                        Err(context.cancelled().await.into())
                    }
                });
                Supervisor::builder().conditions(conditions.clone()).start(both)
            }
        };
        let outcome = tokio::time::timeout(STUCK, manager.wait_finished()).await.ok();
        if matches!(outcome, Some(Outcome::Running(_))) {
            let then = async {
                match host.then {
                    Then::Nothing => {}
                    Then::Settle => access.settled(&manager, &host.seals).await,
                    Then::Rekey => {
                        access.settled(&manager, &host.seals).await;
                        manager.rekey().await.unwrap();
                    }
                    Then::Change(change) => {
                        access.settled(&manager, &host.seals).await;
                        access.change(change);
                        manager.settle_key().await.unwrap();
                    }
                    Then::LoseData => {
                        encrypted.lose();
                        while suspensions.load(Ordering::SeqCst) == 0 || manager.consensus_member().is_none() {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        assert_eq!(
                            manager.state(),
                            State::Running,
                            "to lose the data is a condition, and no other state"
                        );
                    }
                }
            };
            tokio::time::timeout(STUCK, then).await.expect("what is to happen happens");
        }
        let recording = disk.recording();
        supervisor.shutdown().await.unwrap();
        let progress = manager.watch().borrow().clone();
        assert!(progress.state != State::New || !conditions.snapshot().is_empty(), "the Manager did something");
        Life {
            recording,
            outcome,
            node_id: progress.node_id.map(|id| id.to_string()),
            cluster_id: progress.cluster_id.map(|id| id.to_string()),
            identified: progress.identity.is_some(),
            conditions: conditions.snapshot(),
            acknowledged: acknowledged.lock().unwrap().clone(),
            clusters: access.history(),
        }
    })
}

/// What the simulated member holds on this disk.
pub(crate) fn contents(image: &Image) -> Contents {
    let disk = SimulatedDisk::new(image.clone(), Vec::new());
    let path = DiskPath::parse("data/etcd/data/simulated").unwrap();
    let bytes = disk.read(&path, STORE_LIMIT).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
