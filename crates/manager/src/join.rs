//! Joining: a node of the cluster comes back after a start. It opens its data alone, or with a key that a running cluster gives it
//! (module `unlock`); a consensus member then waits for its own member, any other node for the leader's answer.

use polis_condition::Severity;
use polis_consensus::PeerPki;
use polis_identity::NodeKey;
use polis_roleserve::StoredMember;
use polis_storage::{GenerationsError, Journal, LocalRoles, TwoGenerationsError};
use polis_supervisor::{Context, with_causes};

use crate::bring_up::{FIRST_ROLES, node};
use crate::consensus::{ConsensusProvider, MemberSettings, WithoutData};
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble};

/// The roles as they were found, and whether their file must be written anew.
struct FoundRoles {
    roles: LocalRoles,
    damage: Option<String>,
    /// Whether neither of its files can be used, so that no next generation can be written after them.
    unusable: bool,
}

/// What a start does about the consensus member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberAtStart {
    /// There is none, or none yet: whoever makes new members and takes old ones away goes on with it.
    NotOurs,
    /// Bring it back. Its data must be there.
    BringBack,
    /// It has worked and cannot come back: its credentials are lost.
    Lost,
}

/// What to do about the consensus member of a node with these roles, given what of it is on the disk.
///
/// That a member is about to join is written down before the role is, and taken back once the member has worked. So what is absent
/// without that note is lost, and never a fresh start.
const fn member_at_start(roles: LocalRoles, stored: &StoredMember, about_to_join: bool) -> MemberAtStart {
    match (roles.consensus_member, stored) {
        (false, _) | (true, StoredMember::Reserved | StoredMember::Joining(_)) => MemberAtStart::NotOurs,
        (true, StoredMember::Established(_)) => MemberAtStart::BringBack,
        (true, StoredMember::Remains) if about_to_join => MemberAtStart::NotOurs,
        (true, StoredMember::Absent | StoredMember::Remains) => MemberAtStart::Lost,
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// Brings back the node that the journal names.
    pub(crate) async fn join(&self, context: &Context, journal: Journal) -> Result<(), Ended> {
        self.report_ignored_parameters(&journal);
        self.wait_for_address(context).await?;
        self.open_data(context, &journal).await?;

        let (credentials, path) = self.load_credentials(context).await?;
        let key = NodeKey::from_secret(credentials.node_key.clone());
        let found = self.load_roles(context, &key).await?;
        // Whether these credentials are the journal's is decided before anything is started with them.
        node(&journal, credentials, &path, found.roles)?;
        // Before anybody else writes them.
        self.mend_roles(context, &found).await?;
        match self.find_member(context, found.roles, &key).await? {
            Some(credentials) => self.join_as_member(context, &journal, &key, found.roles, credentials).await,
            None => {
                let node = self.identify(context, &journal, found.roles).await?;
                self.run_as_guest(context, node).await
            }
        }
    }

    /// The credentials of the consensus member that is to be brought back, if there is one.
    async fn find_member(&self, context: &Context, roles: LocalRoles, key: &NodeKey) -> Result<Option<PeerPki>, Ended> {
        if !roles.consensus_member {
            return Ok(None);
        }
        let (layout, key) = (self.layout.clone(), key.clone());
        let (stored, about_to_join) = self
            .on_disk(context, move || {
                let stored = StoredMember::load(&layout, &key).map_err(Trouble::from)?;
                let about_to_join = layout.data.etcd.joining.peek().map_err(Trouble::from)?.is_some();
                Ok::<_, Trouble>((stored, about_to_join))
            })
            .await?;
        match (member_at_start(roles, &stored, about_to_join), stored) {
            (MemberAtStart::BringBack, StoredMember::Established(credentials)) => Ok(Some(*credentials)),
            (MemberAtStart::Lost, _) => Err(Ended::Failed(Failure::File {
                what: "credentials of the consensus member",
                path: self.layout.data.etcd.credentials.full_path(),
                source: "the file is missing, although the node is a member; restore its data".into(),
            })),
            (MemberAtStart::NotOurs | MemberAtStart::BringBack, _) => Ok(None),
        }
    }

    /// Brings back a node with a consensus member.
    async fn join_as_member(
        &self,
        context: &Context,
        journal: &Journal,
        key: &NodeKey,
        roles: LocalRoles,
        credentials: PeerPki,
    ) -> Result<(), Ended> {
        let settings = MemberSettings { credentials, public_key: key.public(), without_data: WithoutData::Refuse };
        let member = self.start_member(context, settings).await?;
        // Others look for the members of this one from here on: alone it may have no quorum.
        let node = self.identify(context, journal, roles).await?;
        let answers = async {
            tokio::select! {
                biased;
                () = self.consensus.ready(&member) => true,
                () = self.consensus.without_vote(&member) => false,
            }
        };
        if context.unless_cancelled(answers).await? {
            self.run_as_member(context, node, &*self.consensus.store(&member)).await
        } else {
            self.run_as_guest(context, node).await
        }
    }

    /// Writes the record of the roles anew if it was damaged.
    async fn mend_roles(&self, context: &Context, found: &FoundRoles) -> Result<(), Ended> {
        if found.unusable {
            let file = self.layout.data.node.roles.clone();
            self.on_disk(context, move || file.discard("roles/discard")).await?;
        }
        if found.damage.is_some() {
            self.store_roles(context, found.roles, "roles/mend").await?;
        }
        Ok(())
    }

    /// The roles last known. Roles that cannot be read keep nobody from starting: a node with the credentials of a consensus
    /// member is one, and what else it does the cluster tells it again (window W12).
    async fn load_roles(&self, context: &Context, key: &NodeKey) -> Result<FoundRoles, Ended> {
        let file = self.layout.data.node.roles.clone();
        let paths = file.full_paths();
        let loaded = self
            .on_disk(context, move || match file.load() {
                Ok(loaded) => Ok(Ok(loaded)),
                Err(
                    error @ (TwoGenerationsError::Files(GenerationsError::BothUnusable { .. })
                    | TwoGenerationsError::Invalid { .. }),
                ) => Ok(Err(error)),
                // What a newer version has written is not damage.
                Err(error) => Err(Trouble::from(error)),
            })
            .await?;
        let (damage, unusable) = match loaded {
            Ok(Some(loaded)) => {
                let damage = loaded.fault.map(|fault| format!("one of its two files: {fault}"));
                return Ok(self.report_roles(context, FoundRoles { roles: loaded.value, damage, unusable: false }));
            }
            Ok(None) => {
                (format!("both of its files are missing: {} and {}", paths[0].display(), paths[1].display()), false)
            }
            Err(error) => (with_causes(&error), true),
        };
        let (layout, key) = (self.layout.clone(), key.clone());
        let roles = match self.on_disk(context, move || StoredMember::load(&layout, &key)).await? {
            StoredMember::Established(_) | StoredMember::Joining(_) => FIRST_ROLES,
            StoredMember::Absent | StoredMember::Remains | StoredMember::Reserved => LocalRoles::default(),
        };
        Ok(self.report_roles(context, FoundRoles { roles, damage: Some(damage), unusable }))
    }

    fn report_roles(&self, context: &Context, found: FoundRoles) -> FoundRoles {
        if let Some(damage) = &found.damage {
            tracing::warn!(damage, "the record of this node's roles is damaged; it is written anew");
            context.conditions().raise(
                "roles-damaged",
                Severity::Warning,
                format!("the record of this node's roles was damaged and has been written anew: {damage}"),
                "nothing is lost; look at the disk if it happens again",
            );
        }
        found
    }

    /// Parameters are for a node that has no cluster; this one has (window S1).
    fn report_ignored_parameters(&self, journal: &Journal) {
        if let Some(path) = self.settings.parameters.present() {
            let cluster = journal.cluster_id.as_deref().unwrap_or("unknown");
            tracing::info!(
                parameters = %path.display(),
                cluster,
                "this node is a member of a cluster already; the parameters are ignored"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_place_that_was_not_taken_yet_excuses_absent_data() {
        use MemberAtStart::{BringBack, Lost, NotOurs};
        let credentials = || Box::new(PeerPki::found(&NodeKey::generate()));
        let stored = [
            StoredMember::Absent,
            StoredMember::Remains,
            StoredMember::Reserved,
            StoredMember::Joining(credentials()),
            StoredMember::Established(credentials()),
        ];
        let table = [
            // No role: whatever is there is being taken away.
            ((false, false), [NotOurs; 5]),
            ((false, true), [NotOurs; 5]),
            ((true, false), [Lost, Lost, NotOurs, NotOurs, BringBack]),
            ((true, true), [Lost, NotOurs, NotOurs, NotOurs, BringBack]),
        ];
        for ((consensus_member, about_to_join), expect) in table {
            for kubernetes_worker in [true, false] {
                let roles = LocalRoles { consensus_member, kubernetes_controller: false, kubernetes_worker };
                let found = stored.each_ref().map(|stored| member_at_start(roles, stored, about_to_join));
                assert_eq!(found, expect, "{consensus_member} {about_to_join}");
            }
        }
    }
}
