//! From options to a running node, and to its end.

use std::sync::Arc;
use std::time::Duration;

use polis_condition::{Conditions, Severity};
use polis_consensus::EtcdBinary;
use polis_machine::Machine;
use polis_manager::{
    EtcdProvider, FIRMWARE_PARAMETERS, Failure, Manager, ParameterSource, State, can_begin, decide, preflight,
};
use polis_rpc::DESCRIPTORS_NEEDED;
use polis_storage::{RootDirectory, RootError};
use polis_supervisor::{Supervisor, runnable};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::console::Console;
use crate::keeping::Keeping;
use crate::metrics::Deaths;
use crate::options::Options;
use crate::parts::{Given, Parts};
use crate::power::{End, Power};
use crate::restart::CommandLine;
use crate::run_error::RunError;
use crate::service_manager::ServiceManager;
use crate::{core_files, descriptors, memory};

/// Threads that run the node. The work is waiting for disks, etcd and the network; a second thread is there so that one
/// that is busy does not keep the others from answering.
const WORKER_THREADS: usize = 2;

/// Name of the signal that the keys Ctrl-C send on a terminal, and Ctrl-Alt-Del on a machine.
const INTERRUPT: &str = "SIGINT";

/// Longest time to wait for the data partition to be closed at the end. It takes some milliseconds, and what is left is cleared by the
/// next start.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    match run_until_end(options, None)? {
        End::Stop => Ok(()),
        // A process has one way to start again.
        End::Restart | End::FirmwareMenu | End::LoadedKernel => match command_line {
            Ok(command_line) => Err(RunError::Restart(command_line.replace_this_process())),
            Err(error) => Err(RunError::Restart(error)),
        },
    }
}

/// Runs a node until its end, on the machine that it has to itself, if it has one.
pub(crate) fn run_until_end(options: Options, machine: Option<&Machine>) -> Result<End, RunError> {
    // What the node and etcd make is for their user alone, whatever whoever starts them wants of new files: with a narrower
    // mask the node could not read what it has written.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    core_files::forbid();
    let memory = memory::protect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let runtime = runtime.map_err(RunError::Runtime)?;
    runtime.block_on(node(options, memory, machine))
}

async fn node(options: Options, memory: memory::Protection, machine: Option<&Machine>) -> Result<End, RunError> {
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
    let (root, keeping) = match found {
        Some(found) => found,
        None => {
            let root = RootDirectory::open_or_create(&options.root).map_err(RunError::Root)?;
            let keeping = Keeping::new(root.disk(), &options);
            (root, keeping)
        }
    };
    let log_tree = machine.map(|machine| machine.log_tree().clone()).unwrap_or_default();
    let subscriber = tracing_subscriber::registry().with(log_tree.layer());
    // Fails only if this process has run a node before; its log tree then stays the one that is logged to.
    let _ = tracing::subscriber::set_global_default(subscriber);
    // A machine has consoles of its own, and its standard error leads into the log.
    let console = if machine.is_none() { Console::start(&log_tree, options.log).ok() } else { None };

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
            keeping,
            etcd,
            parameters,
            address: options.address,
            peers: &options.peers,
            conditions: conditions.clone(),
            log_tree: log_tree.clone(),
            deaths: deaths.clone(),
            service_manager: service_manager.clone(),
            memory,
            machine: machine.cloned(),
        },
    );
    let (manager, power) = (parts.manager.clone(), parts.power.clone());
    let parts = runnable(move |context| parts.clone().run(context));
    let supervisor =
        Supervisor::builder().log_tree(log_tree).conditions(conditions).metrics(Arc::new(deaths)).start(parts);
    let end = wait(&manager, &power, &mut stop, machine.is_some()).await;
    match end {
        End::Stop => service_manager.stopping(),
        End::Restart | End::FirmwareMenu | End::LoadedKernel => service_manager.restarting(),
    }
    if let Err(error) = supervisor.shutdown().await {
        tracing::error!(error = &error as &dyn std::error::Error, "not everything stopped in time");
    }
    // Nothing writes there any more.
    match timeout(CLOSE_TIMEOUT, manager.close_data()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(error = &error as &dyn std::error::Error, "the data partition was not closed")
        }
        Err(_) => tracing::error!("closing the data partition takes too long; the next start clears what is left"),
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
/// Returns the root if it exists, and what the node keeps its data and its keys with.
async fn look_before(
    options: &Options,
    parameters: &ParameterSource,
) -> Result<Option<(RootDirectory, Keeping)>, RunError> {
    let refused = |failure: Failure| RunError::Refused(failure);
    match RootDirectory::open(&options.root) {
        Ok(root) => {
            let keeping = Keeping::new(root.disk(), options);
            let looked = preflight(keeping.disk.clone(), &keeping.seals, &*keeping.backends, parameters).await;
            looked.map_err(refused)?;
            Ok(Some((root, keeping)))
        }
        // A root that is not there yet holds no journal, so the parameters decide.
        Err(RootError::Absent { .. }) => {
            let decision = decide(None, || parameters.read()).map_err(refused)?;
            let keeping = Keeping::without_root(options).map_err(|error| RunError::Root(RootError::Disk(error)))?;
            can_begin(&decision, parameters, &keeping.seals, &*keeping.backends).map_err(refused)?;
            Ok(None)
        }
        Err(error) => Err(RunError::Root(error)),
    }
}

/// Waits for the end of the node: a signal, an operator's wish, or a failure.
async fn wait(manager: &Manager<EtcdProvider>, power: &Power, stop: &mut StopSignals, is_machine: bool) -> End {
    let mut progress = manager.watch();
    let failed = progress.wait_for(|progress| progress.state == State::Failed);
    tokio::select! {
        name = stop.received() => {
            tracing::info!("asked to stop by {name}");
            // On a machine the keys Ctrl-Alt-Del are that signal, and they mean what they always do.
            if is_machine && name == INTERRUPT { End::Restart } else { End::Stop }
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
            _ = self.interrupt.recv() => INTERRUPT,
        }
    }
}
