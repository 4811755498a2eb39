//! A whole Manager on a simulated disk: real code above, a disk that can lose power below, and a consensus member that is
//! a file on that disk.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use polis_curator::{ClusterStore, Creation, Entry, StoreError, layout};
use polis_manager::{
    ConsensusProvider, Manager, MemberSettings, Outcome, ParameterSource, Settings, State, WithoutData,
};
use polis_proto::api::NodeParameters;
use polis_proto::api::node_parameters::{Cluster, ClusterBootstrap};
use polis_proto::common::ClusterConfiguration;
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_storage::simulation::{Image, Recording, SimulatedDisk};
use polis_storage::{Disk, DiskPath, FILE_MODE, Layout, PlainData, durable, read_if_present};
use polis_supervisor::{BoxError, Context, Supervisor};
use prost::Message as _;
use tempfile::TempDir;
use tokio::sync::watch;

/// Site of the simulated member's own writes: what etcd syncs is etcd's business.
pub(crate) const SIMULATED_ETCD: &str = "simulated-etcd";

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

    fn start(&self, _: &Context, settings: MemberSettings) -> Result<SimulatedMember, BoxError> {
        let path = DiskPath::parse("data/etcd/data/simulated")?;
        let found = read_if_present(&*self.disk, &path, STORE_LIMIT)?;
        let contents = match (found, settings.without_data) {
            (Some(bytes), _) => serde_json::from_slice(&bytes)?,
            (None, WithoutData::Found) => Contents::new(),
            (None, WithoutData::Refuse) => return Ok(None),
        };
        let (disk, acknowledged, panics) = (self.disk.clone(), self.acknowledged.clone(), self.panics.clone());
        let store = SimulatedStore { disk, path, contents: Mutex::default(), acknowledged, panics };
        store.persist(contents)?;
        Ok(Some(Arc::new(store)))
    }

    async fn ready(&self, member: &SimulatedMember) {
        if member.is_none() {
            std::future::pending::<()>().await;
        }
    }

    fn store(&self, member: &SimulatedMember) -> Arc<dyn ClusterStore> {
        member.clone().expect("only a member with data is ready")
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
    /// Conditions at the end, by name.
    pub(crate) conditions: Vec<String>,
    /// Acknowledged writes of the member.
    pub(crate) acknowledged: Vec<(usize, Contents)>,
}

impl Life {
    /// Whether the node came to Running.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Running(_)))
    }

    /// Whether what a running node keeps on its disk agrees with what its cluster holds.
    pub(crate) fn fits_together(&self) -> Result<(), String> {
        let end = self.recording.cuts().unwrap().pop().expect("a recording has an end").image();
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
        if self.conditions.iter().any(|condition| condition == "roles-damaged") {
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
            None => format!("stuck, with conditions {:?}", self.conditions),
            Some(Outcome::Running(node)) => format!("Running as {}", node.id),
            Some(Outcome::Failed(failure)) => format!("Failed: {}", polis_supervisor::with_causes(&**failure)),
        }
    }
}

/// Parameters that this build follows.
pub(crate) fn parameters() -> Vec<u8> {
    let configuration = ClusterConfiguration {
        cluster_domain: String::new(),
        tpm_mode: TpmMode::Disabled.into(),
        storage_security_policy: StorageSecurityPolicy::NeedsInsecure.into(),
        kubernetes: None,
    };
    let bootstrap = ClusterBootstrap {
        owner_public_key: polis_identity::OwnerKey::generate().public().as_bytes().to_vec(),
        initial_cluster_configuration: Some(configuration),
        labels: None,
    };
    NodeParameters { cluster: Some(Cluster::ClusterBootstrap(bootstrap)), network_config: None }.encode_to_vec()
}

/// A parameters file outside of the simulated disk.
pub(crate) struct ParametersFile {
    directory: TempDir,
}

impl ParametersFile {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("parameters.pb"), parameters()).unwrap();
        Self { directory }
    }

    pub(crate) fn source(&self) -> ParameterSource {
        let absent: PathBuf = self.directory.path().join("absent");
        let file = self.directory.path().join("parameters.pb");
        ParameterSource { file: Some(file), firmware: absent.clone(), esp: absent }
    }
}

/// A Manager on this disk.
pub(crate) fn manager(
    disk: &Arc<SimulatedDisk>,
    parameters: ParameterSource,
    acknowledged: &Acknowledged,
    panics: u32,
) -> Manager<SimulatedConsensus> {
    let settings = Settings {
        disk: disk.clone(),
        data: Arc::new(PlainData::new(disk.clone())),
        address: watch::Sender::new(Some(IpAddr::V4(Ipv4Addr::LOCALHOST))).subscribe(),
        parameters,
        tpm_present: false,
    };
    let (disk, acknowledged, panics) = (disk.clone(), acknowledged.clone(), Arc::new(AtomicU32::new(panics)));
    Manager::new(settings, SimulatedConsensus { disk, acknowledged, panics })
}

/// Starts a node on a disk with this on it and waits until it runs, has failed or is stuck. Time is simulated.
pub(crate) fn live(image: Image, parameters: ParameterSource) -> Life {
    let fat = Layout::new(Arc::new(SimulatedDisk::default())).fat_directories();
    let disk = Arc::new(SimulatedDisk::new(image, fat));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        Layout::new(disk.clone()).prepare_start().unwrap();
        let acknowledged = Acknowledged::default();
        let manager = manager(&disk, parameters, &acknowledged, 0);
        let conditions = polis_condition::Conditions::default();
        let supervisor = Supervisor::builder().conditions(conditions.clone()).start(manager.runnable());
        let outcome = tokio::time::timeout(STUCK, manager.wait_finished()).await.ok();
        let recording = disk.recording();
        supervisor.shutdown().await.unwrap();
        let progress = manager.watch().borrow().clone();
        assert_ne!(progress.state, State::New, "the Manager did something");
        Life {
            recording,
            outcome,
            node_id: progress.node_id.map(|id| id.to_string()),
            cluster_id: progress.cluster_id.map(|id| id.to_string()),
            conditions: conditions.snapshot().into_iter().map(|condition| condition.name).collect(),
            acknowledged: acknowledged.lock().unwrap().clone(),
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
