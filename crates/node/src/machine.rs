//! A node that is the first process of a machine of its own: the machine is brought up, runs beside the node, and ends with it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_condition::{Conditions, Severity};
use polis_control::Status;
use polis_identity::AuthorityCertificate;
use polis_machine::{How, Inputs, Machine, Names, Overview};
use polis_manager::ParameterSource;
use polis_network::Network;
use polis_network::machine::{MachineNetwork, keep_configuration};
use polis_parameters::Parameters;
use polis_storage::Layout;
use polis_supervisor::{Context, RunnableResult, StartError, with_causes};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::options::{LogFormat, Options};
use crate::power::End;
use crate::run::run_until_end;
use crate::run_error::RunError;
use crate::status::Sources;

/// Root of a node that has a machine of its own.
const ROOT: &str = "/";

/// Name of the condition that the static network configuration cannot be kept for the next start, or read from the last.
const NETWORK_NOT_KEPT: &str = "network-configuration-not-kept";

/// Whether this process is the first one of a machine of its own.
#[must_use]
pub fn is_machine() -> bool {
    polis_machine::is_init()
}

/// Brings the machine up, runs its node until it ends, and ends the machine: it starts again, or is switched off where that was
/// asked for. A failure is told on its consoles.
pub fn run_machine() -> ! {
    let machine = match polis_machine::bring_up() {
        Ok(machine) => machine,
        Err(error) => Machine::give_up(&error),
    };
    // Nobody is above this process who could hear of a panic.
    let ended = catch_unwind(AssertUnwindSafe(|| run_until_end(options(&machine), Some(&machine))));
    let (how, failure) = match &ended {
        Ok(Ok(End::Stop)) => (How::PowerOff, None),
        Ok(Ok(End::Restart)) => (How::Restart, None),
        Ok(Ok(End::FirmwareMenu)) => (How::FirmwareMenu, None),
        Ok(Ok(End::LoadedKernel)) => (How::LoadedKernel, None),
        Ok(Err(error)) => (How::Restart, Some(explain(error))),
        Err(panic) => (How::Restart, Some(format!("its program has panicked: {}", message(&**panic)))),
    };
    machine.end(how, failure.as_deref(), || Ok(()))
}

fn options(machine: &Machine) -> Options {
    Options {
        root: ROOT.into(),
        parameters: None,
        address: None,
        etcd: None,
        etcd_unsafe_version: false,
        data_device: machine.data_device().map(Path::to_owned),
        tpm_helper: None,
        peers: Vec::new(),
        log: LogFormat::Console,
    }
}

fn explain(error: &RunError) -> String {
    let text = with_causes(error);
    error.hint().map_or_else(|| text.clone(), |hint| format!("{text}\n{hint}"))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value that is not text")
}

/// How the network of this machine is to be: as its parameters say, or those of an earlier start. What is wrong with either is a
/// condition; the machine then asks for an address by DHCP. Blocks.
pub(crate) fn network(parameters: &ParameterSource, layout: &Layout, conditions: &Conditions) -> MachineNetwork {
    // Parameters that cannot be used, or are not there any more, are the Manager's business.
    let given = parameters.read().ok().and_then(|given| Parameters::parse(&given.bytes).ok()?.network);
    let polis = &layout.esp.polis;
    let made = layout.esp.directory.create("machine/esp").and_then(|()| polis.directory.create("machine/esp/polis"));
    let kept = match made {
        Ok(()) => keep_configuration(&polis.network, given.as_ref()).map_err(|error| with_causes(&error)),
        Err(error) => Err(with_causes(&error)),
    };
    let configuration = kept.unwrap_or_else(|error| {
        conditions.raise(
            NETWORK_NOT_KEPT,
            Severity::Warning,
            error,
            "the next start may not have the static network configuration; look at the EFI system partition",
        );
        given
    });
    MachineNetwork { configuration }
}

/// Starts what goes on beside a node on its machine, as a child of this runnable.
pub(crate) fn start(
    context: &Context,
    machine: &Machine,
    network: &Network,
    sources: &Sources,
    status: watch::Receiver<Status>,
    data: &Path,
) -> Result<(), StartError> {
    let values = Values::default();
    let inputs = Inputs {
        overview: values.overview.subscribe(),
        names: values.names.subscribe(),
        nameservers: network.nameservers(),
        time_servers: network.time_servers(),
        data: values.data.subscribe(),
    };
    context.run("machine", machine.runnable(inputs))?;
    let (sources, data) = (sources.clone(), data.to_owned());
    context.run("machine-values", move |context| {
        values.clone().follow(context, sources.clone(), status.clone(), data.clone())
    })
}

/// What the machine is told of its node.
#[derive(Clone, Default)]
struct Values {
    overview: watch::Sender<Arc<Overview>>,
    names: watch::Sender<Arc<Names>>,
    data: watch::Sender<Option<PathBuf>>,
}

impl Values {
    /// Keeps them up to date: a runnable. The status changes with everything that they are made of.
    async fn follow(
        self,
        context: Context,
        sources: Sources,
        mut status: watch::Receiver<Status>,
        data: PathBuf,
    ) -> RunnableResult {
        let mut members = sources.members.clone();
        context.healthy();
        loop {
            let now = status.borrow_and_update().clone();
            let identity = sources.manager.watch().borrow().identity.clone();
            let listed = members.borrow_and_update().clone();
            let others = listed.iter().flat_map(|signed| signed.list().members());
            let others = others
                .filter_map(|member| Some((member.node_id.to_string(), *member.addresses.first()?)))
                .filter(|(id, _)| Some(id) != now.node_id.as_ref());
            let names =
                Names { node_id: now.node_id.clone(), address: *sources.address.borrow(), others: others.collect() };
            set(&self.names, Arc::new(names));
            // The identity is read from the data partition, or was just written there.
            set(&self.data, identity.is_some().then(|| data.clone()));
            set(&self.overview, Arc::new(overview(now, identity.as_ref().map(|identity| &identity.authority))));
            tokio::select! {
                cancelled = context.cancelled() => return Err(cancelled.into()),
                changed = status.changed() => changed?,
                changed = members.changed() => changed?,
            }
        }
    }
}

fn set<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|old| {
        let changed = *old != value;
        *old = value;
        changed
    });
}

fn overview(status: Status, authority: Option<&AuthorityCertificate>) -> Overview {
    Overview {
        version: polis_version::text().to_owned(),
        node_id: status.node_id,
        cluster_id: status.cluster_id,
        ca_fingerprint: authority.map(|authority| {
            let digest = Sha256::digest(authority.der());
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        }),
        address: status.address,
        roles: status.roles,
        state: status.state.name().to_owned(),
        failure: status.reason,
        conditions: status.conditions,
    }
}
