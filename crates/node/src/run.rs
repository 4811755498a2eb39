//! From options to a running node, and to its end.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_condition::Conditions;
use polis_consensus::EtcdBinary;
use polis_control::Status;
use polis_logtree::LogTree;
use polis_manager::{
    EtcdProvider, FIRMWARE_PARAMETERS, Failure, Manager, ParameterSource, Settings, State, decide, preflight,
    prepare_ephemeral, prepare_lasting,
};
use polis_network::{AddressSource, Network};
use polis_storage::{DataPartition as _, Layout, PlainData, RootDirectory, RootError};
use polis_supervisor::{Context, RunnableResult, Supervisor, runnable};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::console::Console;
use crate::options::Options;
use crate::run_error::RunError;
use crate::status::Sources;
use crate::{condition_log, control, last_state};

/// Threads that run the node. The work is waiting for disks, etcd and the network; a second thread is there so that one
/// that is busy does not keep the others from answering.
const WORKER_THREADS: usize = 2;

/// The device that a machine with a TPM 2.0 has (Linux: the resource manager's device of the first TPM).
const TPM_DEVICE: &str = "/dev/tpmrm0";

/// Runs a node until it is asked to stop or has failed. Returns after an orderly stop.
///
/// # Errors
///
/// See [`RunError`].
pub fn run(options: Options) -> Result<(), RunError> {
    // What the node and etcd make is for their user alone, whatever whoever starts them wants of new files: with a narrower
    // mask the node could not read what it has written.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    runtime.map_err(RunError::Runtime)?.block_on(node(options))
}

async fn node(options: Options) -> Result<(), RunError> {
    let mut stop = StopSignals::listen()?;
    let etcd = EtcdBinary::find(options.etcd.as_deref(), std::env::var_os("PATH").as_deref())
        .map_err(RunError::Etcd)?
        .allow_unsafe_version(options.etcd_unsafe_version);
    let parameters = ParameterSource {
        file: options.parameters.clone(),
        firmware: FIRMWARE_PARAMETERS.into(),
        esp: options.root.join("esp/polis/parameters.pb"),
    };
    // The version comes first: while etcd prints it, there is something else to do.
    let version = async { etcd.verify().await.map_err(RunError::Etcd) };
    let before = async { tokio::try_join!(version, look_before(&options, &parameters)) };
    let (_, found) = tokio::select! {
        before = before => before?,
        // Nothing was made yet.
        _ = stop.received() => return Ok(()),
    };
    // From here on something may be written.
    let root = match found {
        Some(root) => root,
        None => RootDirectory::open_or_create(&options.root).map_err(RunError::Root)?,
    };
    let log_tree = LogTree::default();
    let subscriber = tracing_subscriber::registry().with(log_tree.layer());
    // Fails only if this process has run a node before; its log tree then stays the one that is logged to.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let console = Console::start(&log_tree, options.log).ok();

    let conditions = Conditions::default();
    let parts = Parts::build(&root, etcd, parameters, options.address, conditions.clone());
    let manager = parts.manager.clone();
    let parts = runnable(move |context| parts.clone().run(context));
    let supervisor = Supervisor::builder().log_tree(log_tree).conditions(conditions).start(parts);
    wait(&manager, &mut stop).await;
    if let Err(error) = supervisor.shutdown().await {
        tracing::error!(error = &error as &dyn std::error::Error, "not everything stopped in time");
    }
    if let Some(console) = console {
        console.finish().await;
    }
    let failure = manager.watch().borrow().failure.clone();
    failure.map_or(Ok(()), |failure| Err(RunError::Failed(failure)))
}

/// The parts of a node, connected. They know each other by watched values only.
#[derive(Clone)]
struct Parts {
    root: PathBuf,
    layout: Layout,
    network: Network,
    manager: Manager<EtcdProvider>,
    sources: Sources,
    status: watch::Sender<Status>,
}

impl Parts {
    fn build(
        root: &RootDirectory,
        etcd: EtcdBinary,
        parameters: ParameterSource,
        address: Option<IpAddr>,
        conditions: Conditions,
    ) -> Self {
        let network = Network::new(address.map_or(AddressSource::DefaultRoute, AddressSource::Fixed));
        let data = PlainData::new(root.disk());
        let storage = data.describe();
        let tpm_present = Path::new(TPM_DEVICE).exists();
        let settings =
            Settings { disk: root.disk(), data: Arc::new(data), address: network.address(), parameters, tpm_present };
        let manager = Manager::new(settings, EtcdProvider::new(etcd, root.disk(), network.address()));
        let sources =
            Sources { manager: manager.clone(), address: network.address(), conditions, storage, tpm_present };
        let status = watch::Sender::new(sources.first());
        Self { root: root.path().to_owned(), layout: Layout::new(root.disk()), network, manager, sources, status }
    }

    /// Runs all parts: the root of the tree of runnables. The node can be asked how it is before it has anything on its disk.
    async fn run(self, context: Context) -> RunnableResult {
        let Self { root, layout, network, manager, sources, status } = self;
        prepare_ephemeral(&context, &layout).await?;
        let watched = status.subscribe();
        context.run("status", {
            let sources = sources.clone();
            move |context| sources.clone().publish(context, status.clone())
        })?;
        context.run("control", {
            let watched = watched.clone();
            move |context| control::serve(context, root.clone(), watched.clone())
        })?;
        context.run("conditions", condition_log::keep)?;
        context.run("network", network.runnable())?;
        prepare_lasting(&context, &layout).await?;
        context.run("last-state", move |context| {
            last_state::keep(context, layout.last_state.clone(), watched.clone(), sources.clone())
        })?;
        context.run("manager", manager.runnable())?;
        context.healthy();
        Err(context.cancelled().await.into())
    }
}

/// Refuses what cannot work before anything is made: the root must be usable, and the Manager must have something to do.
/// Returns the root if it exists.
async fn look_before(options: &Options, parameters: &ParameterSource) -> Result<Option<RootDirectory>, RunError> {
    let refused = |failure: Failure| RunError::Refused(failure);
    match RootDirectory::open(&options.root) {
        Ok(root) => {
            preflight(root.disk(), &PlainData::new(root.disk()), parameters).await.map_err(refused)?;
            Ok(Some(root))
        }
        // A root that is not there yet holds no journal, so the parameters decide.
        Err(RootError::Absent { .. }) => {
            decide(None, || parameters.read()).map_err(refused)?;
            Ok(None)
        }
        Err(error) => Err(RunError::Root(error)),
    }
}

/// Waits for the end of the node: a signal, or a failure.
async fn wait(manager: &Manager<EtcdProvider>, stop: &mut StopSignals) {
    let mut progress = manager.watch();
    let failed = progress.wait_for(|progress| progress.state == State::Failed);
    tokio::select! {
        name = stop.received() => tracing::info!("asked to stop by {name}"),
        _ = failed => {}
    }
}

/// The signals that ask the node to stop. Listened to from the first moment, as their default is to end a process at once.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal that the node was started from was closed.
    hangup: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self, RunError> {
        let listen = |kind| signal(kind).map_err(RunError::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them and gives its name.
    async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
