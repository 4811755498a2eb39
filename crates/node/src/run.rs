//! From options to a running node, and to its end.

use std::sync::Arc;

use polis_condition::Conditions;
use polis_consensus::EtcdBinary;
use polis_logtree::LogTree;
use polis_manager::{
    EtcdProvider, FIRMWARE_PARAMETERS, Failure, Manager, ParameterSource, Settings, State, decide, preflight,
    prepare_ephemeral, prepare_lasting,
};
use polis_network::{AddressSource, Network};
use polis_storage::{DataPartition as _, Layout, PlainData, RootDirectory, RootError};
use polis_supervisor::{Supervisor, runnable};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::console::Console;
use crate::options::Options;
use crate::run_error::RunError;
use crate::status::Sources;
use crate::{control, last_state};

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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    runtime.map_err(RunError::Runtime)?.block_on(node(options))
}

async fn node(options: Options) -> Result<(), RunError> {
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
    let (_, found) = tokio::try_join!(version, look_before(&options, &parameters))?;
    // From here on something may be written.
    let root = match found {
        Some(root) => root,
        None => RootDirectory::open_or_create(&options.root).map_err(RunError::Root)?,
    };
    let layout = Layout::new(root.disk());

    let tree = LogTree::default();
    let subscriber = tracing_subscriber::registry().with(tree.layer());
    // Fails only if this process has run a node before; its log tree then stays the one that is logged to.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let console = Console::start(&tree, options.log).ok();

    let conditions = Conditions::default();
    let source = options.address.map_or(AddressSource::DefaultRoute, AddressSource::Fixed);
    let network = Network::new(source);
    let data = PlainData::new(root.disk());
    let tpm_present = std::path::Path::new(TPM_DEVICE).exists();
    let provider = EtcdProvider::new(etcd, root.disk(), network.address());
    let sources = |manager: &Manager<EtcdProvider>| Sources {
        manager: manager.clone(),
        address: network.address(),
        conditions: conditions.clone(),
        storage: data.describe(),
        tpm_present,
    };
    let settings = Settings {
        disk: root.disk(),
        data: Arc::new(data.clone()),
        address: network.address(),
        parameters,
        tpm_present,
    };
    let manager = Manager::new(settings, provider);
    let sources = sources(&manager);
    let status = watch::Sender::new(sources.first());

    let supervisor = Supervisor::builder().log_tree(tree.clone()).conditions(conditions.clone()).start({
        let (manager, network, sources, status) = (manager.clone(), network, sources, status.clone());
        let path = root.path().to_owned();
        runnable(move |context| {
            let (manager, network, sources, status) =
                (manager.clone(), network.clone(), sources.clone(), status.clone());
            let (path, layout) = (path.clone(), layout.clone());
            async move {
                prepare_ephemeral(&context, &layout).await?;
                let watched = status.subscribe();
                context.run("status", {
                    let sources = sources.clone();
                    move |context| sources.clone().publish(context, status.clone())
                })?;
                context.run("control", {
                    let watched = watched.clone();
                    move |context| control::serve(context, path.clone(), watched.clone())
                })?;
                context.run("network", network.runnable())?;
                prepare_lasting(&context, &layout).await?;
                let last_state = layout.last_state;
                context.run("last-state", move |context| {
                    last_state::keep(context, last_state.clone(), watched.clone(), sources.clone())
                })?;
                context.run("manager", manager.runnable())?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        })
    });

    let signals = wait(&manager).await;
    if let Err(error) = supervisor.shutdown().await {
        tracing::error!(error = &error as &dyn std::error::Error, "not everything stopped in time");
    }
    if let Some(console) = console {
        console.finish().await;
    }
    let failure = manager.watch().borrow().failure.clone();
    failure.map_or(signals, |failure| Err(RunError::Failed(failure)))
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
async fn wait(manager: &Manager<EtcdProvider>) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let mut progress = manager.watch();
    let failed = progress.wait_for(|progress| progress.state == State::Failed);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("asked to stop by SIGTERM"),
        _ = interrupt.recv() => tracing::info!("asked to stop by SIGINT"),
        _ = failed => {}
    }
    Ok(())
}
