//! The status of the node: one watched value, put together from what the parts publish.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use polis_condition::Conditions;
use polis_consensus::{Consensus, Status as MemberStatus};
use polis_control::{
    ColdStart, ColdStartMode, ConsensusMember, ConsensusStatus, Contact, EnrolmentPhase, Epoch, LockState, LockStatus,
    NodeState, SharesStatus, SnapshotsStatus, SplitStatus, Status, StorageStatus,
};
use polis_manager::{ColdStart as Opens, EtcdProvider, Manager, Progress, State};
use polis_roleserve::{Contact as LeaderContact, SplitState};
use polis_storage::LocalRoles;
use polis_storage::data::Description;
use polis_storage::journal::{Phase, SealKind, StorageSecurity};
use polis_supervisor::{Context, RunnableResult, with_causes};
use polis_unlock::{Epoch as MembersEpoch, SignedMemberList};
use polis_unlock_service::{Lock, UnlockStatus};
use tokio::sync::watch;
use tokio::time::Instant;

/// What the status is put together from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) manager: Manager<EtcdProvider>,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    pub(crate) conditions: Conditions,
    pub(crate) member: watch::Receiver<Option<Consensus>>,
    pub(crate) roles: watch::Receiver<Option<LocalRoles>>,
    pub(crate) contact: watch::Receiver<LeaderContact>,
    pub(crate) members: watch::Receiver<Option<Arc<SignedMemberList>>>,
    pub(crate) snapshots: watch::Receiver<polis_snapshots::State>,
    pub(crate) tpm_present: bool,
    /// Of the key that the node shows when it cannot unseal its own.
    pub(crate) fingerprint: String,
}

impl Sources {
    /// Keeps `status` up to date for as long as the node runs: a runnable.
    pub(crate) async fn publish(mut self, context: Context, status: watch::Sender<Status>) -> RunnableResult {
        let mut progress = self.manager.watch();
        let mut conditions = self.conditions.watch();
        let (mut lock, mut unlocking) = (self.manager.lock(), self.manager.unlock_status());
        let mut split = self.manager.split();
        context.healthy();
        loop {
            // All are marked as seen before they are read, so that nothing that comes in between is missed.
            progress.mark_unchanged();
            conditions.mark_unchanged();
            lock.mark_unchanged();
            unlocking.mark_unchanged();
            split.mark_unchanged();
            self.address.mark_unchanged();
            self.roles.mark_unchanged();
            self.contact.mark_unchanged();
            self.members.mark_unchanged();
            self.snapshots.mark_unchanged();
            let mut member = self.member.borrow_and_update().as_ref().map(Consensus::status);
            if let Some(member) = &mut member {
                member.mark_unchanged();
            }
            let now = self.now();
            status.send_if_modified(|old| {
                let changed = !same_but_for_time(old, &now);
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
                changed = conditions.changed() => changed?,
                changed = lock.changed() => changed?,
                changed = unlocking.changed() => changed?,
                changed = split.changed() => changed?,
                changed = self.address.changed() => changed?,
                changed = self.roles.changed() => changed?,
                changed = self.contact.changed() => changed?,
                changed = self.members.changed() => changed?,
                changed = self.snapshots.changed() => changed?,
                changed = self.member.changed() => changed?,
                () = member_changed => {}
            }
        }
    }

    /// The status now, whatever has been published.
    pub(crate) fn now(&self) -> Status {
        let member = self.member.borrow().as_ref().map(|member| member.status().borrow().clone());
        let (address, contact) = (*self.address.borrow(), self.contact.borrow().clone());
        let epoch = self.members.borrow().as_ref().map(|signed| signed.list().epoch());
        let manager = self.manager.watch();
        let progress = manager.borrow();
        let belongs = progress.identity.is_some();
        // A node that waits for its key says so already.
        let belongs_or_locked = belongs || progress.phase == Some(Phase::Enrolled);
        Status {
            state: state(progress.state),
            reason: progress.failure.as_deref().map(|failure| with_causes(failure)),
            node_id: progress.node_id.as_ref().map(ToString::to_string),
            cluster_id: progress.cluster_id.as_ref().map(ToString::to_string),
            phase: phase(progress.phase.as_ref()),
            address: address.map(|address| address.to_string()),
            roles: self.roles(&progress),
            cold_start: belongs_or_locked.then(|| ColdStart {
                mode: progress.cold_start.map(cold_start_mode),
                epoch: epoch.map(shown_epoch),
                split: self.manager.split().borrow().as_ref().map(split_status),
            }),
            contact: belongs.then(|| contact_status(&contact, Instant::now(), Timestamp::now())),
            consensus: member.as_ref().map(consensus),
            storage: progress.data.map(|data| self.storage(data, progress.seal)),
            lock: progress.phase.as_ref().and_then(|_| self.lock()),
            snapshots: snapshots(*self.snapshots.borrow()),
            conditions: self.conditions.snapshot(),
            running: true,
        }
    }

    /// What the node waits for, while its data are not open.
    fn lock(&self) -> Option<LockStatus> {
        let lock = self.manager.lock();
        let status = self.manager.unlock_status();
        lock_status(&lock.borrow(), &status.borrow(), &self.fingerprint)
    }

    /// The roles that are followed, and until they are read those that the Manager has found.
    fn roles(&self, progress: &Progress) -> Vec<String> {
        let followed = self.roles.borrow().filter(|_| progress.identity.is_some());
        followed.or_else(|| progress.node.as_deref().map(|node| node.roles)).map(roles).unwrap_or_default()
    }

    fn storage(&self, data: Description, seal: Option<SealKind>) -> StorageStatus {
        let security = match data.storage_security {
            StorageSecurity::Insecure => "insecure",
            StorageSecurity::Encrypted => "encrypted",
            StorageSecurity::AuthenticatedEncrypted => "authenticated",
        };
        let tpm = match (seal, self.tpm_present) {
            (Some(SealKind::Tpm), _) => "present_and_used",
            (Some(SealKind::Plain) | None, true) => "present_but_unused",
            (Some(SealKind::Plain) | None, false) => "not_present",
        };
        StorageStatus { security: security.into(), backend: data.backend.into(), tpm: tpm.into() }
    }
}

/// The snapshots that are known; a time that no calendar has is none.
fn snapshots(state: polis_snapshots::State) -> Option<SnapshotsStatus> {
    let polis_snapshots::State { newest, kept, tried } = state;
    let newest = newest?;
    Some(SnapshotsStatus {
        newest: Timestamp::from_second(newest.seconds).ok()?,
        revision: newest.revision,
        kept,
        tried,
    })
}

/// Whether two values say the same, apart from when a heartbeat was answered last and how long a node has waited for others.
fn same_but_for_time(old: &Status, new: &Status) -> bool {
    let without = |status: &Status| {
        let mut status = status.clone();
        if let Some(contact) = &mut status.contact {
            contact.last_heartbeat = None;
        }
        if let Some(lock) = &mut status.lock {
            lock.reason.clear();
        }
        status
    };
    without(old) == without(new)
}

/// The contact as it is told. Times of the process become times of the clock.
fn contact_status(contact: &LeaderContact, now: Instant, clock: Timestamp) -> Contact {
    Contact {
        in_contact: contact.established,
        last_heartbeat: contact.silent_for(now).and_then(|silent| clock.checked_sub(silent).ok()),
        leader: contact.leader,
        last_failure: contact.last_failure.clone(),
    }
}

fn lock_status(lock: &Lock, status: &UnlockStatus, fingerprint: &str) -> Option<LockStatus> {
    match lock {
        Lock::Open => None,
        Lock::Locked => {
            let shares = status.progress.counts;
            let shares = shares.map(|counts| SharesStatus { have: counts.have.into(), need: counts.need.into() });
            Some(LockStatus { state: LockState::Locked, reason: status.describe(), shares, fingerprint: None })
        }
        Lock::Sealed { reason } => Some(LockStatus {
            state: LockState::Sealed,
            reason: reason.clone(),
            shares: None,
            fingerprint: Some(fingerprint.to_owned()),
        }),
    }
}

fn split_status(split: &SplitState) -> SplitStatus {
    SplitStatus {
        epoch: shown_epoch(split.split),
        shares_needed: split.shares_needed,
        holders: split.holders.iter().map(ToString::to_string).collect(),
        verified: split.is_verified,
    }
}

const fn shown_epoch(epoch: MembersEpoch) -> Epoch {
    Epoch { incarnation: epoch.incarnation, epoch: epoch.epoch }
}

const fn cold_start_mode(opens: Opens) -> ColdStartMode {
    match opens {
        Opens::Local => ColdStartMode::Local,
        Opens::Cluster => ColdStartMode::Cluster,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_of_the_process_become_times_of_the_clock() {
        let (heard, clock) = (Instant::now(), Timestamp::from_second(1_000_000_000).unwrap());
        let contact = LeaderContact { established: true, last_heartbeat: Some(heard), ..LeaderContact::default() };
        let told = contact_status(&contact, heard + Duration::from_secs(3), clock);
        assert_eq!(told.last_heartbeat, Some(Timestamp::from_second(999_999_997).unwrap()));
        let never = contact_status(&LeaderContact::default(), heard, clock);
        assert_eq!((never.in_contact, never.last_heartbeat), (false, None));
    }

    #[test]
    fn that_a_heartbeat_was_answered_is_no_news() {
        let at = |second, in_contact| Status {
            state: NodeState::Running,
            reason: None,
            node_id: None,
            cluster_id: None,
            phase: EnrolmentPhase::Enrolled,
            address: None,
            roles: vec![],
            cold_start: None,
            contact: Some(Contact {
                in_contact,
                last_heartbeat: Some(Timestamp::from_second(second).unwrap()),
                leader: None,
                last_failure: None,
            }),
            consensus: None,
            storage: None,
            lock: None,
            snapshots: None,
            conditions: vec![],
            running: true,
        };
        assert!(same_but_for_time(&at(1, true), &at(6, true)));
        assert!(!same_but_for_time(&at(1, true), &at(6, false)));
    }
}
