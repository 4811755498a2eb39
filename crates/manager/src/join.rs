//! Joining: a member comes back after a start. With plain data it needs nobody else.

use polis_condition::Severity;
use polis_consensus::PeerPki;
use polis_identity::NodeKey;
use polis_storage::{GenerationsError, Journal, LocalRoles, TwoGenerationsError};
use polis_supervisor::{Context, with_causes};

use crate::bring_up::{FIRST_ROLES, node, node_id};
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

impl<C: ConsensusProvider> Inner<C> {
    /// Brings back the member that the journal names.
    pub(crate) async fn join(&self, context: &Context, journal: Journal) -> Result<(), Ended> {
        self.report_ignored_parameters(&journal);
        self.wait_for_address(context).await?;
        self.open_data(context, &node_id(&journal)?.to_string()).await?;

        let (credentials, path) = self.load_credentials(context).await?;
        let key = NodeKey::from_secret(credentials.node_key.clone());
        let public_key = key.public();
        let found = self.load_roles(context).await?;
        // Whether these credentials are the journal's is decided before anything is started with them.
        node(&journal, credentials, &path, found.roles)?;

        let file = self.layout.data.etcd.credentials.clone();
        let path = file.full_path();
        let peers = self.on_disk(context, move || PeerPki::load(&file, &key)).await?.ok_or_else(|| Failure::File {
            what: "credentials of the consensus member",
            path,
            source: "the file is missing, although the node is a member; restore its data".into(),
        })?;
        let settings = MemberSettings { credentials: peers, public_key, without_data: WithoutData::Refuse };
        let store = self.start_member(context, settings).await?;
        if found.unusable {
            let file = self.layout.data.node.roles.clone();
            self.on_disk(context, move || file.discard("roles/discard")).await?;
        }
        if found.damage.is_some() {
            self.store_roles(context, found.roles, "roles/mend").await?;
        }
        self.finish(context, &journal, found.roles, &*store).await
    }

    /// The roles last known. Roles that cannot be read keep nobody from starting: a node with the credentials of a consensus
    /// member is one, and what else it does the cluster tells it again (window W12).
    async fn load_roles(&self, context: &Context) -> Result<FoundRoles, Ended> {
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
        let found = match loaded {
            Ok(Some(loaded)) => FoundRoles {
                roles: loaded.value,
                damage: loaded.fault.map(|fault| format!("one of its two files: {fault}")),
                unusable: false,
            },
            Ok(None) => FoundRoles {
                roles: FIRST_ROLES,
                damage: Some(format!(
                    "both of its files are missing: {} and {}",
                    paths[0].display(),
                    paths[1].display()
                )),
                unusable: false,
            },
            Err(error) => FoundRoles { roles: FIRST_ROLES, damage: Some(with_causes(&error)), unusable: true },
        };
        if let Some(damage) = &found.damage {
            tracing::warn!(damage, "the record of this node's roles is damaged; it is written anew");
            context.conditions().raise(
                "roles-damaged",
                Severity::Warning,
                format!("the record of this node's roles was damaged and has been written anew: {damage}"),
                "nothing is lost; look at the disk if it happens again",
            );
        }
        Ok(found)
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
