//! From options to a running node, and to its end.

use std::sync::Arc;

use polis_condition::{Conditions, Severity};
use polis_consensus::EtcdBinary;
use polis_logtree::LogTree;
use polis_manager::{EtcdProvider, FIRMWARE_PARAMETERS, Failure, Manager, ParameterSource, State, decide, preflight};
use polis_rpc::DESCRIPTORS_NEEDED;
use polis_storage::{PlainData, RootDirectory, RootError};
use polis_supervisor::{Supervisor, runnable};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::console::Console;
use crate::metrics::Deaths;
use crate::options::Options;
use crate::parts::{Given, Parts};
use crate::power::{End, Power};
use crate::restart::CommandLine;
use crate::run_error::RunError;
use crate::service_manager::ServiceManager;
use crate::{core_files, descriptors};

/// Threads that run the node. The work is waiting for disks, etcd and the network; a second thread is there so that one
/// that is busy does not keep the others from answering.
const WORKER_THREADS: usize = 2;

/// Name of the condition that this process may open fewer files than its servers have seats.
const FEW_DESCRIPTORS: &str = "few-file-descriptors";

/// Runs a node until it is asked to stop or has failed. Returns after an orderly stop. When an operator asks for a restart, this
/// process becomes another one with the same command line, and nothing returns.
///
/// # Errors
///
/// See [`RunError`].
pub fn run(options: Options) -> Result<(), RunError> {
    let command_line = CommandLine::of_this_process();
    // What the node and etcd make is for their user alone, whatever whoever starts them wants of new files: with a narrower
    // mask the node could not read what it has written.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    core_files::forbid();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let runtime = runtime.map_err(RunError::Runtime)?;
    let end = runtime.block_on(node(options))?;
    drop(runtime);
    match end {
        End::Stop => Ok(()),
        End::Restart => match command_line {
            Ok(command_line) => Err(RunError::Restart(command_line.replace_this_process())),
            Err(error) => Err(RunError::Restart(error)),
        },
    }
}

async fn node(options: Options) -> Result<End, RunError> {
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
        _ = stop.received() => return Ok(End::Stop),
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
    raise_descriptors(&conditions);
    let service_manager = ServiceManager::of_this_process().unwrap_or_else(|error| {
        tracing::warn!(%error, "the service manager that started this node cannot be told anything");
        ServiceManager::default()
    });
    let deaths = Deaths::default();
    let parts = Parts::build(
        &root,
        Given {
            etcd,
            parameters,
            address: options.address,
            peers: &options.peers,
            conditions: conditions.clone(),
            log_tree: log_tree.clone(),
            deaths: deaths.clone(),
            service_manager: service_manager.clone(),
        },
    );
    let (manager, power) = (parts.manager.clone(), parts.power.clone());
    let parts = runnable(move |context| parts.clone().run(context));
    let supervisor =
        Supervisor::builder().log_tree(log_tree).conditions(conditions).metrics(Arc::new(deaths)).start(parts);
    let end = wait(&manager, &power, &mut stop).await;
    match end {
        End::Stop => service_manager.stopping(),
        End::Restart => service_manager.restarting(),
    }
    if let Err(error) = supervisor.shutdown().await {
        tracing::error!(error = &error as &dyn std::error::Error, "not everything stopped in time");
    }
    if let Some(console) = console {
        console.finish().await;
    }
    let failure = manager.watch().borrow().failure.clone();
    failure.map_or(Ok(end), |failure| Err(RunError::Failed(failure)))
}

/// Lets this process open as many files as it may, and says so where that is few.
fn raise_descriptors(conditions: &Conditions) {
    let Some(limit) = descriptors::raise_limit() else { return };
    if limit < DESCRIPTORS_NEEDED as u64 {
        conditions.raise(
            FEW_DESCRIPTORS,
            Severity::Info,
            format!(
                "this process may open {limit} files, and serving a large cluster through a flood of connections takes \
                 {DESCRIPTORS_NEEDED}"
            ),
            "for a small cluster nothing needs to be done; else raise the limit (LimitNOFILE= in a unit, `ulimit -Hn`)",
        );
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

/// Waits for the end of the node: a signal, an operator's wish, or a failure.
async fn wait(manager: &Manager<EtcdProvider>, power: &Power, stop: &mut StopSignals) -> End {
    let mut progress = manager.watch();
    let failed = progress.wait_for(|progress| progress.state == State::Failed);
    tokio::select! {
        name = stop.received() => {
            tracing::info!("asked to stop by {name}");
            End::Stop
        }
        end = power.requested() => end,
        _ = failed => End::Stop,
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
