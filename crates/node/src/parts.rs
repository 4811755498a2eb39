//! The parts of a node, connected. They know each other by watched values only.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use polis_condition::Conditions;
use polis_consensus::EtcdBinary;
use polis_control::{Peer, Status};
use polis_logtree::LogTree;
use polis_machine::Machine;
use polis_manager::{
    EtcdProvider, InCluster, Manager, ParameterSource, RpcAccess, Settings, prepare_ephemeral, prepare_lasting,
};
use polis_network::{AddressSource, Network};
use polis_proto::version::spec::Version;
use polis_proto::version::spec::version::Release;
use polis_roleserve::{Announce, BeforeVote, ClusterKeys, ControlPlane, ControlPlaneSettings, Identity, RoleServe};
use polis_rpc::{METRICS_PORT, NODE_MANAGEMENT_PORT, ServerIdentity, ServerSettings, serve, serve_pages};
use polis_snapshots::Snapshots;
use polis_storage::{Layout, RootDirectory};
use polis_supervisor::{BoxError, Context, RunnableResult};
use polis_update::SelectedEntry;
use tokio::sync::watch;

use crate::keeping::Keeping;
use crate::management::{Management, SnapshotFiles};
use crate::measures::Measures;
use crate::metrics::{Deaths, page};
use crate::peers::KnownPeers;
use crate::power::Power;
use crate::service_manager::ServiceManager;
use crate::serving::{LIMITS, Port, serve_at};
use crate::status::Sources;
use crate::unlock::UnlockPort;
use crate::update::{MachineOrders, MachineSlots, keep_trial};
use crate::{condition_log, control, farewell, last_state, memory};

/// The device that a machine with a TPM 2.0 has (Linux: the resource manager's device of the first TPM).
const TPM_DEVICE: &str = "/dev/tpmrm0";

const MANAGEMENT: Port = Port {
    number: NODE_MANAGEMENT_PORT,
    condition: "node-management-cannot-listen",
    consequence: "Operators cannot read its log from elsewhere or restart it",
};

const METRICS: Port =
    Port { number: METRICS_PORT, condition: "metrics-cannot-listen", consequence: "Monitoring does not see this node" };

/// What parts are built from, beside the root.
pub(crate) struct Given<'a> {
    pub(crate) keeping: Keeping,
    pub(crate) etcd: EtcdBinary,
    pub(crate) parameters: ParameterSource,
    pub(crate) address: Option<IpAddr>,
    pub(crate) peers: &'a [Peer],
    pub(crate) conditions: Conditions,
    pub(crate) log_tree: LogTree,
    pub(crate) deaths: Deaths,
    pub(crate) service_manager: ServiceManager,
    pub(crate) memory: memory::Protection,
    /// The machine, if this node has one to itself.
    pub(crate) machine: Option<Machine>,
}

/// The parts of a node, connected.
#[derive(Clone)]
pub(crate) struct Parts {
    root: PathBuf,
    layout: Layout,
    network: Network,
    control_plane: ControlPlane,
    snapshots: Snapshots,
    pub(crate) manager: Manager<EtcdProvider>,
    role_serve: RoleServe,
    unlock_port: UnlockPort,
    peers: KnownPeers,
    sources: Sources,
    status: watch::Sender<Status>,
    log_tree: LogTree,
    deaths: Deaths,
    pub(crate) power: Power,
    service_manager: ServiceManager,
    memory: memory::Protection,
    machine: Option<Machine>,
    /// The boot slots of the machine, if this node has one to itself.
    slots: Option<MachineSlots>,
}

impl Parts {
    pub(crate) fn build(root: &RootDirectory, given: Given<'_>) -> Self {
        let Given {
            keeping,
            etcd,
            parameters,
            address,
            peers,
            conditions,
            log_tree,
            deaths,
            service_manager,
            memory,
            machine,
        } = given;
        let Keeping { disk, backends, seals } = keeping;
        let network = Network::new(match (address, &machine) {
            (Some(address), _) => AddressSource::Fixed(address),
            (None, None) => AddressSource::DefaultRoute,
            (None, Some(_)) => AddressSource::Machine(crate::machine::network(
                &parameters,
                &Layout::new(Arc::clone(&disk)),
                &conditions,
            )),
        });
        let address = network.address();
        let tpm_present = Path::new(TPM_DEVICE).exists();
        let peers = KnownPeers::new(Arc::clone(&disk), peers);
        let etcd_path = etcd.path().to_owned();
        let settings = ControlPlaneSettings { etcd, disk: Arc::clone(&disk), address: address.clone() };
        let control_plane = ControlPlane::new(settings);
        let snapshots = Snapshots::new(polis_snapshots::Settings {
            disk: Arc::clone(&disk),
            member: control_plane.member(),
            etcd: etcd_path,
            search_path: std::env::var_os("PATH"),
            timing: polis_snapshots::Timing::default(),
        });
        let access = RpcAccess::new();
        let settings = Settings {
            disk: Arc::clone(&disk),
            backends,
            seals,
            address: address.clone(),
            peers: peers.watch(),
            parameters,
            access: Arc::new(access.clone()),
        };
        let manager = Manager::new(settings, EtcdProvider::new(control_plane.clone()));
        let role_serve = RoleServe::new(polis_roleserve::Settings {
            identity: manager.identity(),
            disk: Arc::clone(&disk),
            address: address.clone(),
            control_plane: control_plane.clone(),
            before_vote: Arc::new(KeyFirst(manager.clone())),
            version: version(),
            peers: peers.watch(),
            announce: Announce::WhereOthersAre,
            members: manager.members(),
            split: manager.split(),
        });
        let keys = Arc::new(ClusterKeys::new(control_plane.member()));
        let unlock_port = UnlockPort::new(manager.clone(), address.clone(), keys);
        access.follow(InCluster {
            contact: role_serve.contact(),
            clients: role_serve.clients(),
            members: role_serve.members(),
            recovery_key: role_serve.recovery_key(),
        });
        let sources = Sources {
            manager: manager.clone(),
            address,
            conditions,
            member: control_plane.member(),
            roles: role_serve.roles(),
            contact: role_serve.contact(),
            members: role_serve.members(),
            snapshots: snapshots.state(),
            tpm_present,
            fingerprint: unlock_port.fingerprint(),
        };
        let status = watch::Sender::new(sources.now());
        let slots = machine.as_ref().map(|machine| {
            let selected = SelectedEntry::of_this_machine();
            MachineSlots::new(Arc::clone(&disk), machine.esp().clone(), selected, sources.conditions.clone())
        });
        Self {
            root: root.path().to_owned(),
            layout: Layout::new(disk),
            network,
            control_plane,
            snapshots,
            manager,
            role_serve,
            unlock_port,
            peers,
            sources,
            status,
            log_tree,
            deaths,
            power: Power::default(),
            service_manager,
            memory,
            machine,
            slots,
        }
    }

    /// Runs all parts: the root of the tree of runnables. The node can be asked how it is before it has anything on its disk.
    pub(crate) async fn run(self, context: Context) -> RunnableResult {
        let Self { root, layout, network, control_plane, manager, role_serve, peers, sources, status, .. } =
            self.clone();
        prepare_ephemeral(&context, &layout).await?;
        let watched = status.subscribe();
        context.run("status", {
            let sources = sources.clone();
            move |context| sources.clone().publish(context, status.clone())
        })?;
        let measures = Measures {
            observer: context.observer(),
            log_tree: self.log_tree.clone(),
            deaths: self.deaths.clone(),
            sources: sources.clone(),
            control_plane: control_plane.clone(),
            role_serve: role_serve.clone(),
        };
        let handlers = control::Handlers {
            status: watched.clone(),
            measures: measures.clone(),
            peers: peers.clone(),
            role_serve: role_serve.clone(),
        };
        context.run("control", move |context| control::serve(context, root.clone(), handlers.clone()))?;
        context.run("conditions", condition_log::keep)?;
        if let Some(machine) = &self.machine {
            let data = layout.data.directory.full_path();
            crate::machine::start(&context, machine, &network, &sources, watched.clone(), &data)?;
        }
        if let Some(slots) = self.slots.clone() {
            let watched = watched.clone();
            context.run("boot-slots", move |context| keep_trial(context, slots.clone(), watched.clone()))?;
        }
        let memory = self.memory;
        context.run("memory", move |context| memory::keep_watch(context, memory))?;
        context.run("network", network.runnable())?;
        context.run("service-manager", {
            let (service_manager, watched) = (self.service_manager.clone(), watched.clone());
            move |context| service_manager.clone().keep_told(context, watched.clone())
        })?;
        prepare_lasting(&context, &layout).await?;
        peers.load(&context).await;
        context.run("last-state", {
            let watched = watched.clone();
            move |context| last_state::keep(context, layout.last_state.clone(), watched.clone(), sources.clone())
        })?;
        let unlock_port = self.unlock_port.clone();
        context.run("unlock-port", move |context| unlock_port.clone().serve(context))?;
        context.run("drills", manager.drills(role_serve.unlock_ports()))?;
        context.run("control-plane", control_plane.runnable())?;
        context.run("roles", role_serve.runnable())?;
        let snapshots = self.snapshots.clone();
        context.run("snapshots", move |context| snapshots.clone().run(context))?;
        context.run("farewell", {
            let (manager, role_serve, control_plane) = (manager.clone(), role_serve.clone(), control_plane.clone());
            move |context| farewell::keep(context, manager.clone(), role_serve.clone(), control_plane.clone())
        })?;
        context.run("management", {
            let parts = self.clone();
            move |context| parts.clone().serve_management(context)
        })?;
        context.run("metrics", {
            let parts = self.clone();
            move |context| parts.clone().serve_metrics(context, measures.clone())
        })?;
        context.run("keys", manager.key_keeper())?;
        context.run("recovery-blob", manager.blob_keeper())?;
        context.run("manager", manager.runnable())?;
        context.healthy();
        Err(context.cancelled().await.into())
    }

    /// What operators ask of this node: a runnable.
    async fn serve_management(self, context: Context) -> RunnableResult {
        context.healthy();
        let settings = self.server_settings(&context, "node management").await?;
        let sources = self.sources.clone();
        let status = Arc::new(move || sources.now());
        let machine = self.slots.map(|slots| Arc::new(slots) as Arc<dyn MachineOrders>);
        let management = Management {
            log_tree: self.log_tree,
            status,
            power: self.power,
            keys: Arc::new(self.manager),
            cluster: settings.identity.authority().cluster_id(),
            snapshots: SnapshotFiles::new(self.snapshots, self.control_plane.curator()),
            machine,
        };
        let routes = management.routes(&context);
        serve_at(&context, self.sources.address, MANAGEMENT, |listener| {
            serve(context.clone(), listener, settings.clone(), routes.clone())
        })
        .await
    }

    /// What monitoring reads: a runnable.
    async fn serve_metrics(self, context: Context, measures: Measures) -> RunnableResult {
        context.healthy();
        let settings = self.server_settings(&context, "metrics").await?;
        let measures = Arc::new(measures);
        serve_at(&context, self.sources.address, METRICS, |listener| {
            let measures = Arc::clone(&measures);
            serve_pages(context.clone(), listener, settings.clone(), move |_, request: http::request::Parts| {
                let measures = Arc::clone(&measures);
                async move { page(request.uri.path(), &*measures).await }
            })
        })
        .await
    }

    /// Waits until it is known who this node is.
    async fn server_settings(&self, context: &Context, name: &'static str) -> Result<ServerSettings, BoxError> {
        let mut identity = self.manager.identity();
        let known = context.unless_cancelled(identity.wait_for(Option::is_some)).await??.clone();
        let Some(identity) = known else { return Err(context.cancelled().await.into()) };
        let Identity { key, certificate, authority, .. } = &*identity;
        Ok(ServerSettings {
            name,
            identity: ServerIdentity::new(key, certificate.clone(), authority.clone())?,
            trust: self.role_serve.trust(),
            limits: LIMITS,
        })
    }
}

/// A member of a cluster of two has to open its data alone when it comes back: it has its key before it has a vote.
struct KeyFirst(Manager<EtcdProvider>);

#[async_trait]
impl BeforeVote for KeyFirst {
    async fn prepare(&self) -> Result<(), BoxError> {
        Ok(self.0.settle_key().await?)
    }
}

/// The version that this node reports to its cluster.
fn version() -> Version {
    let polis_version::Version { major, minor, patch } = polis_version::version();
    let number = |number: u32| number.into();
    let release = Release { major: number(major), minor: number(minor), patch: number(patch) };
    Version { release: Some(release), git_information: None }
}
