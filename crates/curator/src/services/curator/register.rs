//! RegisterNode: a machine asks for admission (windows W7, W17 and W21 of `crash-windows.md`).
//!
//! It may be repeated at any time: a machine that has registered gets the same answer again, with the same node key and the
//! same join key, in each state up to UP. The record, and the index from the join key to the node, are one transaction, so that
//! no key is ever two nodes'.

use polis_consensus::Transaction;
use polis_identity::{NodeId, PublicKey};
use polis_parameters::{LabelFault, Labels, StoragePolicy, TpmMode};
use polis_proto::common::{ClusterConfiguration, NodeRoles, NodeState, NodeTpmUsage};
use polis_proto::curator_api::{RegisterNodeRequest, RegisterNodeResponse};
use tonic::Status;

use crate::services::core::{Core, parse_key, with_tombstone};
use crate::services::failure::{Failure, repeat};
use crate::services::{policy, ticket};
use crate::{LeaderState, NodeRecord, StateError, layout};

/// Most machines that may wait for an operator. Whoever has the ticket can register, and each registration stays until somebody
/// deletes it; this is more than an operator looks through.
const MAX_WAITING: usize = 4096;

/// Registers the machine whose node key is `key`.
pub(super) async fn register(
    core: &Core,
    leader: &LeaderState,
    key: PublicKey,
    request: RegisterNodeRequest,
) -> Result<RegisterNodeResponse, Status> {
    let join_key = parse_key("join_key", &request.join_key)?;
    ticket::check(leader, &request.register_ticket).await?;
    let (labels, faults) = Labels::from_wire(request.labels.unwrap_or_default());
    let machine = Machine { id: NodeId::of(&key), key, join_key, has_tpm: request.have_local_tpm, labels };
    let (response, is_new) = repeat(|| try_register(core, leader, &machine)).await?;
    if is_new {
        tracing::info!("{} has registered and waits for approval", machine.id);
        if let Some(LabelFault { label, error }) = faults.first() {
            let count = faults.len();
            tracing::warn!("{} starts without {count} of its labels; the first is {label}: {error}", machine.id);
        }
    }
    Ok(response)
}

/// Who asks.
struct Machine {
    id: NodeId,
    key: PublicKey,
    join_key: PublicKey,
    has_tpm: bool,
    labels: Labels,
}

/// One attempt. Also returns whether the machine is new.
async fn try_register(
    core: &Core,
    leader: &LeaderState,
    machine: &Machine,
) -> Result<(RegisterNodeResponse, bool), Failure> {
    let configuration = read_configuration(leader).await?;
    let modes = Modes::of(&configuration)?;
    let key = layout::node(&machine.id);
    if let Some(found) = leader.node(&machine.id).await? {
        check_known(machine, &found.value)?;
        return Ok((answer(configuration, &modes, found.value.tpm_usage), false));
    }
    let tpm_usage = policy::tpm_usage(modes.tpm, machine.has_tpm)
        .map_err(|error| Status::permission_denied(format!("this machine cannot register: {error}")))?;
    let (tombstone, join_key) = (layout::tombstone(&machine.id), layout::join_key(&machine.join_key));
    if let Some(found) = leader.get(&tombstone).await? {
        let status = Status::failed_precondition(format!(
            "{} was removed from the cluster, and its key is never taken again; erase the machine to register it as a new node",
            machine.id
        ));
        return Err(with_tombstone(status, Some(found.value)).into());
    }
    if let Some(owner) = leader.get(&join_key).await? {
        // Registered by another attempt of the same machine, since its record was looked for.
        if owner.value == machine.id.to_string().as_bytes() {
            return Err(StateError::Conflict.into());
        }
        return Err(Status::failed_precondition(
            "the join key is that of another node; each machine makes its own, so this one was copied",
        )
        .into());
    }
    let is_waiting = |state| matches!(state, NodeState::New | NodeState::Standby);
    if core.nodes.all().iter().filter(|node| is_waiting(node.value.state)).count() >= MAX_WAITING {
        return Err(Status::resource_exhausted(format!(
            "{MAX_WAITING} machines have registered and wait; approve or delete some of them first"
        ))
        .into());
    }
    let record = NodeRecord {
        id: machine.id,
        public_key: machine.key,
        state: NodeState::New,
        roles: NodeRoles::default(),
        status: None,
        join_key: machine.join_key,
        cluster_unlock_key: None,
        clusternet: None,
        tpm_usage,
        labels: machine.labels.clone(),
    };
    let transaction = Transaction::new()
        .if_absent(key.as_str())
        .if_absent(tombstone)
        .if_absent(join_key.as_str())
        .put(key, record.encode())
        .put(join_key, machine.id.to_string());
    leader.transact("curator/node/register", transaction).await?;
    Ok((answer(configuration, &modes, tpm_usage), true))
}

/// Whether the record that is there is of the machine that asks, and may still register.
fn check_known(machine: &Machine, record: &NodeRecord) -> Result<(), Status> {
    let refused = |what: &str| Err(Status::failed_precondition(format!("{} {what}", machine.id)));
    if record.public_key != machine.key {
        return refused("is the id of another key; make a new node key by erasing the machine");
    }
    if record.join_key != machine.join_key {
        return refused("is registered with another join key: an earlier start of this machine has lost its data");
    }
    match record.state {
        NodeState::New | NodeState::Standby | NodeState::Up => Ok(()),
        NodeState::Decommissioned => refused("was decommissioned, and cannot register again"),
        NodeState::Invalid => refused("is in no known state"),
    }
}

/// What the configuration asks of nodes.
pub(super) struct Modes {
    pub(super) tpm: TpmMode,
    pub(super) storage: StoragePolicy,
}

impl Modes {
    /// # Errors
    ///
    /// When the stored configuration is one that no version of Polis has written.
    pub(super) fn of(configuration: &ClusterConfiguration) -> Result<Self, StateError> {
        let damaged = |source| StateError::damaged(layout::cluster_configuration(), source);
        Ok(Self {
            tpm: TpmMode::from_wire(configuration.tpm_mode).map_err(damaged)?,
            storage: StoragePolicy::from_wire(configuration.storage_security_policy).map_err(damaged)?,
        })
    }
}

/// The cluster's configuration.
pub(in crate::services) async fn read_configuration(leader: &LeaderState) -> Result<ClusterConfiguration, StateError> {
    let key = layout::cluster_configuration();
    let found = leader.get_message::<ClusterConfiguration>(&key).await?;
    found.map(|found| found.value).ok_or_else(|| StateError::damaged(key, "it is missing"))
}

fn answer(configuration: ClusterConfiguration, modes: &Modes, tpm_usage: NodeTpmUsage) -> RegisterNodeResponse {
    RegisterNodeResponse {
        cluster_configuration: Some(configuration),
        tpm_usage: tpm_usage.into(),
        recommended_node_storage_security: policy::recommended_storage(modes.storage).into(),
    }
}
