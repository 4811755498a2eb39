//! From options to a running node, and to its end.

use std::process::ExitCode;
use std::sync::Arc;

use polis_condition::Conditions;
use polis_consensus::EtcdBinary;
use polis_logtree::LogTree;
use polis_manager::{
    EtcdProvider, FIRMWARE_PARAMETERS, Manager, ParameterSource, Settings, State, chain, decide,
    preflight,
};
use polis_network::{AddressSource, Network};
use polis_storage::{DataPartition as _, Layout, PlainData, RootDirectory, RootError};
use polis_supervisor::{Supervisor, runnable};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::console::Console;
use crate::options::Options;
use crate::start_error::StartError;
use crate::status::Sources;
use crate::{control, last_state};

/// Threads that run the node. The work is waiting for disks, etcd and the network; a second thread is there so that one
/// that is busy does not keep the others from answering.
const WORKER_THREADS: usize = 2;

/// The device that a machine with a TPM 2.0 has (Linux: the resource manager's device of the first TPM).
const TPM_DEVICE: &str = "/dev/tpmrm0";

/// Runs a node until it is asked to stop or has failed. The exit code is that of the command contract: 0 after an orderly stop,
/// 1 with the reason on standard error, 2 for a missing prerequisite.
#[must_use]
pub fn run(options: Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let outcome = runtime.map_err(StartError::Runtime).and_then(|runtime| runtime.block_on(node(options)));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("polis node run: {}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

async fn node(options: Options) -> Result<ExitCode, StartError> {
    let etcd = EtcdBinary::find(options.etcd.as_deref(), std::env::var_os("PATH").as_deref())
        .map_err(StartError::Etcd)?
        .allow_unsafe_version(options.etcd_unsafe_version);
    let parameters = ParameterSource {
        file: options.parameters.clone(),
        firmware: FIRMWARE_PARAMETERS.into(),
        esp: options.root.join("esp/polis/parameters.pb"),
    };
    let found = look_before(&options, &parameters)?;
    etcd.verify().await.map_err(StartError::Etcd)?;
    // From here on something may be written.
    let root = match found {
        Some(root) => root,
        None => RootDirectory::open_or_create(&options.root).map_err(StartError::Root)?,
    };
    let layout = Layout::new(root.disk());
    let swept = layout.prepare_start().map_err(StartError::Prepare)?;

    let tree = LogTree::default();
    let subscriber = tracing_subscriber::registry().with(tree.layer());
    // Fails only if this process has run a node before; its log tree then stays the one that is logged to.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let console = Console::start(&tree, options.log).ok();
    for path in swept {
        tracing::info!(path = %path.display(), "removed what an interrupted write had left");
    }

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
        let (path, last_state) = (root.path().to_owned(), layout.last_state.clone());
        runnable(move |context| {
            let (manager, network, sources, status) = (manager.clone(), network.clone(), sources.clone(), status.clone());
            let (path, last_state) = (path.clone(), last_state.clone());
            async move {
                let watched = status.subscribe();
                context.run("status", move |context| sources.clone().publish(context, status.clone()))?;
                context.run("last-state", {
                    let watched = watched.clone();
                    move |context| last_state::keep(context, last_state.clone(), watched.clone())
                })?;
                context.run("control", move |context| control::serve(context, path.clone(), watched.clone()))?;
                context.run("network", network.runnable())?;
                context.run("manager", manager.runnable())?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        })
    });

    let code = wait(&manager).await;
    if let Err(error) = supervisor.shutdown().await {
        tracing::error!(error = &error as &dyn std::error::Error, "not everything stopped in time");
    }
    if let Some(console) = console {
        console.finish().await;
    }
    if let Some(failure) = manager.watch().borrow().failure.as_deref() {
        eprintln!("polis node run: the node has failed: {}", chain(failure));
    }
    Ok(code)
}

/// Refuses what cannot work before anything is made: the root must be usable, and the Manager must have something to do.
/// Returns the root if it exists.
fn look_before(options: &Options, parameters: &ParameterSource) -> Result<Option<RootDirectory>, StartError> {
    match RootDirectory::open(&options.root) {
        Ok(root) => {
            preflight(root.disk(), parameters).map_err(StartError::Failure)?;
            Ok(Some(root))
        }
        // A root that is not there yet holds no journal, so the parameters decide.
        Err(RootError::Absent { .. }) => {
            decide(None, || parameters.read()).map_err(StartError::Failure)?;
            Ok(None)
        }
        Err(error) => Err(StartError::Root(error)),
    }
}

/// Waits for the end of the node: a signal, or a failure.
async fn wait(manager: &Manager<EtcdProvider>) -> ExitCode {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("the system does not deliver signals");
        return ExitCode::FAILURE;
    };
    let mut progress = manager.watch();
    let failed = progress.wait_for(|progress| progress.state == State::Failed);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("asked to stop by SIGTERM"),
        _ = interrupt.recv() => tracing::info!("asked to stop by SIGINT"),
        _ = failed => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}
