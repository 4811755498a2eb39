//! Does what the roles of this node ask for: above all, runs a consensus member while the node has that role, and puts it away
//! when it has it no more.
//!
//! Roles are durable before anything is done because of them. What is to be done is decided anew from what is there after each
//! change ([`plan`]), so that whatever a kill has left is gone on with at the next start, without having to be known.

use std::sync::Arc;
use std::time::Duration;

use polis_condition::Severity;
use polis_consensus::{Consensus, PeerPki, Phase, Start};
use polis_identity::{Certificate, RevocationList, verify_certificate_authority};
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::ConsensusMember;
use polis_storage::LocalRoles;
use polis_supervisor::{BoxError, Context, RunnableResult, with_causes};
use tokio::time::sleep;

use crate::control_plane::{
    ControlPlane, MemberSettings, StoredMember, begin_join, clear, finish_join, renew, reserve,
};
use crate::identity::Identity;
use crate::kept::Kept;
use crate::members::ClusterMembers;
use crate::roles::{Running, Step, Stored, plan};
use crate::shared::{OwnRecord, Shared, changed};

/// Name of the condition that is raised when what the cluster has issued for a new member cannot be used.
pub const MEMBER_CREDENTIALS_UNUSABLE: &str = "member-credentials-unusable";

/// Name of the condition that is raised while a member cannot be started or put away.
pub const MEMBER_NOT_CHANGED: &str = "member-not-changed";

/// Pause before a step that failed is tried again. What it fails of is the disk or a port of this machine.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    shared.settings.control_plane.set_identity(&identity)?;
    let kept = Kept::new(shared.layout.data.node.roles.clone(), "the record of this node's roles", "roles-damaged");
    let stored = context.unless_cancelled(kept.load(&context)).await??;
    if shared.roles.borrow().is_none() {
        shared.roles.send_replace(stored);
    }
    context.healthy();
    let work = Work { shared: &shared, context: &context, identity: &identity, kept };
    context.unless_cancelled(work.serve()).await?
}

struct Work<'a> {
    shared: &'a Shared,
    context: &'a Context,
    identity: &'a Identity,
    kept: Kept<LocalRoles>,
}

impl Work<'_> {
    /// Serves until something fails that another life may do better.
    async fn serve(&self) -> RunnableResult {
        // A life before may have ended within it.
        self.control_plane().finish_stop().await;
        let mut record = self.shared.record.subscribe();
        let mut member = self.control_plane().member();
        loop {
            let recorded = record.borrow_and_update().clone();
            if let Some(recorded) = &recorded {
                self.take_roles(&recorded.roles).await?;
            }
            let running = member.borrow_and_update().clone();
            let phase = running.as_ref().map(|running| running.status().borrow().phase);
            match self.step(recorded.as_ref(), phase).await {
                Ok(Next::Again) => {}
                Ok(Next::Wait) => {
                    self.context.conditions().clear(MEMBER_NOT_CHANGED);
                    tokio::select! {
                        () = changed(&mut record) => {}
                        () = changed(&mut member) => {}
                        () = news(running.as_ref(), phase) => {}
                    }
                }
                Err(error) => {
                    self.context.conditions().raise(
                        MEMBER_NOT_CHANGED,
                        Severity::Error,
                        format!(
                            "the consensus member of this node cannot be started or put away: {}",
                            with_causes(&*error)
                        ),
                        "cure what the message names; it is tried again every few seconds",
                    );
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Makes the roles durable, and tells of them.
    async fn take_roles(&self, roles: &NodeRoles) -> Result<(), BoxError> {
        let roles = LocalRoles {
            consensus_member: roles.consensus_member.is_some(),
            kubernetes_controller: roles.kubernetes_controller.is_some(),
            kubernetes_worker: roles.kubernetes_worker.is_some(),
        };
        if *self.shared.roles.borrow() == Some(roles) {
            return Ok(());
        }
        if roles.consensus_member {
            // A start that finds the role finds a member, or the note that there is to be one.
            let key = self.identity.key.clone();
            self.shared.on_member_files(self.context, move |_, layout| reserve(layout, &key)).await?;
        }
        self.kept.store(self.context, roles, "roles/recorded").await?;
        let LocalRoles { consensus_member, kubernetes_controller, kubernetes_worker } = roles;
        tracing::info!(
            consensus_member,
            kubernetes_controller,
            kubernetes_worker,
            "the roles of this node have changed"
        );
        self.shared.roles.send_replace(Some(roles));
        Ok(())
    }

    /// Does what is to be done, if there is anything.
    async fn step(&self, recorded: Option<&OwnRecord>, phase: Option<Phase>) -> Result<Next, BoxError> {
        let Some(roles) = *self.shared.roles.borrow() else { return Ok(Next::Wait) };
        let key = self.identity.key.clone();
        let found =
            self.shared.on_member_files(self.context, move |_, layout| StoredMember::load(layout, &key)).await?;
        let issued = recorded.and_then(|recorded| recorded.roles.consensus_member.as_ref());
        let stored = match &found {
            StoredMember::Absent => Stored::Absent,
            StoredMember::Remains => Stored::Remains,
            StoredMember::Reserved => Stored::Reserved,
            StoredMember::Joining(known) if issued.is_some_and(|issued| is_other(issued, known)) => Stored::Outdated,
            StoredMember::Joining(_) => Stored::Joining,
            StoredMember::Established(known) if issued.is_some_and(|issued| is_other(issued, known)) => {
                Stored::Replaced
            }
            StoredMember::Established(_) => Stored::Established,
        };
        let doing = match phase {
            None => Running::No,
            Some(Phase::Removed) => Running::Removed,
            Some(
                Phase::Down | Phase::Starting | Phase::Learner | Phase::Leaderless | Phase::Ready | Phase::Hanging,
            ) => Running::Yes,
        };
        let steps = plan(roles.consensus_member, stored, doing, phase == Some(Phase::Ready));
        let mut credentials = match found {
            StoredMember::Joining(credentials) | StoredMember::Established(credentials) => Some(*credentials),
            StoredMember::Absent | StoredMember::Remains | StoredMember::Reserved => None,
        };
        for step in steps {
            match step {
                Step::Leave => {
                    tracing::info!("this node is no longer a member of the consensus; what it has of it is put away");
                    self.control_plane().stop_member().await;
                    self.shared.on_member_files(self.context, clear).await?;
                }
                Step::Renew => {
                    tracing::info!("this node's consensus member is to be another; the old one is put away");
                    self.control_plane().stop_member().await;
                    let key = self.identity.key.clone();
                    self.shared.on_member_files(self.context, move |disk, layout| renew(disk, layout, &key)).await?;
                }
                Step::Reserve => {
                    let key = self.identity.key.clone();
                    self.shared.on_member_files(self.context, move |_, layout| reserve(layout, &key)).await?;
                }
                Step::StoreCredentials => {
                    // Without a record there is nothing yet to start with; the cluster will tell.
                    let Some(read) = issued.and_then(|issued| self.credentials(issued)) else { return Ok(Next::Wait) };
                    // Once, and before anything could have a vote: later, the cluster may have no leader without this member.
                    let mut record = self.shared.record.subscribe();
                    tokio::select! {
                        biased;
                        prepared = self.shared.settings.before_vote.prepare() => prepared?,
                        // The role may have gone meanwhile.
                        () = changed(&mut record) => return Ok(Next::Again),
                    }
                    credentials = Some(read.clone());
                    self.shared.on_member_files(self.context, move |_, layout| begin_join(layout, &read)).await?;
                }
                Step::StartJoining => {
                    tracing::info!("this node joins the consensus");
                    let cluster = self.shared.cluster(self.context).await?;
                    let own = self.identity.public_key();
                    let members = ClusterMembers::shared(cluster, self.shared.addresses.clone(), own);
                    self.start(credentials.take(), Start::Join(members)).await?;
                }
                Step::StartExisting => self.start(credentials.take(), Start::Existing).await?,
                Step::FinishJoin => {
                    self.shared.on_member_files(self.context, |_, layout| finish_join(layout)).await?;
                    tracing::info!("this node is a member of the consensus");
                }
            }
        }
        Ok(if steps.is_empty() { Next::Wait } else { Next::Again })
    }

    fn control_plane(&self) -> &ControlPlane {
        &self.shared.settings.control_plane
    }

    async fn start(&self, credentials: Option<PeerPki>, start: Start) -> Result<(), BoxError> {
        let credentials = credentials.ok_or("the plan asks for a start without credentials")?;
        let control_plane = self.control_plane().clone();
        let public_key = self.identity.public_key();
        let settings = MemberSettings { credentials, public_key, start };
        self.context.blocking(move || control_plane.start_member(settings)).await?;
        Ok(())
    }

    /// What the cluster has issued for the member, if it can be used.
    fn credentials(&self, issued: &ConsensusMember) -> Option<PeerPki> {
        match read_credentials(issued, self.identity) {
            Ok(credentials) => {
                self.context.conditions().clear(MEMBER_CREDENTIALS_UNUSABLE);
                Some(credentials)
            }
            Err(error) => {
                self.context.conditions().raise(
                    MEMBER_CREDENTIALS_UNUSABLE,
                    Severity::Error,
                    format!("what the cluster has issued for this node's consensus member cannot be used: {error}"),
                    "take the role away from the node and give it again",
                );
                None
            }
        }
    }
}

/// Waits until the member that was in this phase has been removed, or works when it did not, or the other way round.
async fn news(running: Option<&Consensus>, seen: Option<Phase>) {
    let (Some(running), Some(seen)) = (running, seen) else { return std::future::pending().await };
    let decisive = |phase| match phase {
        Phase::Ready => 1,
        Phase::Removed => 2,
        Phase::Down | Phase::Starting | Phase::Learner | Phase::Leaderless | Phase::Hanging => 0,
    };
    if running.status().wait_for(|status| decisive(status.phase) != decisive(seen)).await.is_err() {
        // The member is in our hands, and with it the sender.
        std::future::pending::<()>().await;
    }
}

/// What follows a look at what is to be done.
enum Next {
    /// Another look: something was done.
    Again,
    /// Nothing, until something changes.
    Wait,
}

/// Whether the cluster has issued another certificate than the known one.
fn is_other(issued: &ConsensusMember, known: &PeerPki) -> bool {
    issued.peer_certificate != known.certificate().der()
}

fn read_credentials(issued: &ConsensusMember, identity: &Identity) -> Result<PeerPki, BoxError> {
    let authority = verify_certificate_authority(Certificate::from_der(issued.ca_certificate.clone())?)?;
    let revocations = RevocationList::read(issued.initial_crl.clone(), &authority)?;
    let certificate = Certificate::from_der(issued.peer_certificate.clone())?;
    if certificate.public_key() != Some(identity.public_key()) {
        return Err("the certificate is for another key".into());
    }
    Ok(PeerPki::issued(authority, revocations, certificate, &identity.key))
}
