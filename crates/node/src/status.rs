//! The status of the node: one watched value, put together from what the parts publish.

use std::net::IpAddr;

use polis_condition::Conditions;
use polis_consensus::Status as MemberStatus;
use polis_control::{ConsensusMember, ConsensusStatus, EnrolmentPhase, NodeState, Status, StorageStatus};
use polis_manager::{EtcdProvider, Manager, Progress, State};
use polis_storage::LocalRoles;
use polis_storage::data::Description;
use polis_storage::journal::{Phase, StorageSecurity};
use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::sync::watch;

/// What the status is put together from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) manager: Manager<EtcdProvider>,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    pub(crate) conditions: Conditions,
    pub(crate) storage: Description,
    pub(crate) tpm_present: bool,
}

impl Sources {
    /// Keeps `status` up to date for as long as the node runs: a runnable.
    pub(crate) async fn publish(self, context: Context, status: watch::Sender<Status>) -> RunnableResult {
        let mut progress = self.manager.watch();
        let mut address = self.address.clone();
        let mut conditions = self.conditions.watch();
        context.healthy();
        loop {
            // The member appears while the Manager works, and each life of the Manager has its own.
            let mut member = self.manager.starting_member().map(|member| member.status());
            let now = {
                let progress = progress.borrow_and_update();
                let address = *address.borrow_and_update();
                let member = member.as_mut().map(|member| member.borrow_and_update().clone());
                self.status(
                    &progress,
                    address,
                    member.as_ref(),
                    conditions.borrow_and_update().values().cloned().collect(),
                )
            };
            status.send_if_modified(|old| {
                let changed = *old != now;
                *old = now;
                changed
            });
            let member_changed = async {
                let changed = match &mut member {
                    Some(member) => member.changed().await.is_ok(),
                    None => false,
                };
                if !changed {
                    // Without a member, or with one that is gone, only the others can bring news.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                cancelled = context.cancelled() => return Err(cancelled.into()),
                changed = progress.changed() => changed?,
                changed = address.changed() => changed?,
                changed = conditions.changed() => changed?,
                () = member_changed => {}
            }
        }
    }

    /// The status now, whatever has been published.
    pub(crate) fn now(&self) -> Status {
        let member = self.manager.starting_member().map(|member| member.status().borrow().clone());
        let address = *self.address.borrow();
        self.status(&self.manager.watch().borrow(), address, member.as_ref(), self.conditions.snapshot())
    }

    /// The status before anything has happened.
    pub(crate) fn first(&self) -> Status {
        self.status(&self.manager.watch().borrow(), None, None, Vec::new())
    }

    fn status(
        &self,
        progress: &Progress,
        address: Option<IpAddr>,
        member: Option<&MemberStatus>,
        conditions: Vec<polis_condition::Condition>,
    ) -> Status {
        Status {
            state: state(progress.state),
            reason: progress.failure.as_deref().map(|failure| with_causes(failure)),
            node_id: progress.node_id.as_ref().map(ToString::to_string),
            cluster_id: progress.cluster_id.as_ref().map(ToString::to_string),
            phase: phase(progress.phase.as_ref()),
            address: address.map(|address| address.to_string()),
            roles: progress.node.as_deref().map(|node| roles(node.roles)).unwrap_or_default(),
            consensus: member.map(consensus),
            storage: Some(self.storage()),
            conditions,
            running: true,
        }
    }

    fn storage(&self) -> StorageStatus {
        let security = match self.storage.storage_security {
            StorageSecurity::Insecure => "insecure",
            StorageSecurity::Encrypted => "encrypted",
            StorageSecurity::AuthenticatedEncrypted => "authenticated",
        };
        let tpm = if self.tpm_present { "present_but_unused" } else { "not_present" };
        StorageStatus { security: security.into(), backend: self.storage.backend.into(), tpm: tpm.into() }
    }
}

const fn state(state: State) -> NodeState {
    match state {
        State::New => NodeState::New,
        State::CreatingCluster => NodeState::CreatingCluster,
        State::Registering => NodeState::Registering,
        State::Joining => NodeState::Joining,
        State::Running => NodeState::Running,
        State::Failed => NodeState::Failed,
    }
}

const fn phase(phase: Option<&Phase>) -> EnrolmentPhase {
    match phase {
        None => EnrolmentPhase::None,
        Some(Phase::Formattable) => EnrolmentPhase::Formattable,
        Some(Phase::Formatted) => EnrolmentPhase::Formatted,
        Some(Phase::Enrolled) => EnrolmentPhase::Enrolled,
        Some(Phase::Removed { .. }) => EnrolmentPhase::Removed,
    }
}

fn roles(roles: LocalRoles) -> Vec<String> {
    let LocalRoles { consensus_member, kubernetes_controller, kubernetes_worker } = roles;
    [
        (consensus_member, "ConsensusMember"),
        (kubernetes_controller, "KubernetesController"),
        (kubernetes_worker, "KubernetesWorker"),
    ]
    .into_iter()
    .filter(|(held, _)| *held)
    .map(|(_, name)| name.to_owned())
    .collect()
}

fn consensus(status: &MemberStatus) -> ConsensusStatus {
    let members = status.members.iter().map(|member| ConsensusMember {
        member_id: hex(member.id),
        node_id: member.node_id.as_ref().map(ToString::to_string),
        learner: member.is_learner,
    });
    ConsensusStatus { member_id: status.member_id.map(hex), leader: status.leader.map(hex), members: members.collect() }
}

/// A member id as etcd's own tools write it.
fn hex(id: u64) -> String {
    format!("{id:x}")
}
