//! What a first start and every later one have in common.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use polis_condition::Severity;
use polis_curator::{ClusterStore, Entry, layout};
use polis_identity::{Certificate, NodeId, NodeKey, verify_certificate_authority, verify_node_in_cluster};
use polis_storage::data::UnlockKeys;
use polis_storage::{Journal, LocalRoles, NodeCredentials};
use polis_supervisor::Context;

use crate::consensus::{ConsensusProvider, MemberSettings};
use crate::failure::Failure;
use crate::manager::Inner;
use crate::node::Node;
use crate::state::State;
use crate::trouble::{Ended, Trouble, until_cured};

/// Roles of the node that founds a cluster (metropolis.md, G.6).
pub(crate) const FIRST_ROLES: LocalRoles =
    LocalRoles { consensus_member: true, kubernetes_controller: true, kubernetes_worker: false };

/// What to do about data that are not protected.
const STORAGE_INSECURE_HINT: &str =
    "this is what the parameters ask for, and good enough for a trial: keep nothing here that others must not read";

/// Plain data have no keys.
pub(crate) const NO_KEYS: Option<&UnlockKeys> = None;

impl<C: ConsensusProvider> Inner<C> {
    /// Does work on the disk, away from the threads that serve everything else, until it succeeds or its trouble is final.
    pub(crate) async fn on_disk<T, E, F>(&self, context: &Context, work: F) -> Result<T, Ended>
    where
        T: Send + 'static,
        E: Into<Trouble> + Send + 'static,
        F: Fn() -> Result<T, E> + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        until_cured(context, || {
            let work = work.clone();
            async move { context.blocking(move || work()).await.map_err(Into::into) }
        })
        .await
    }

    /// Opens the data partition, however long that takes.
    pub(crate) async fn open_data(&self, context: &Context, owner: &str) -> Result<(), Ended> {
        until_cured(context, || async { Ok(self.settings.data.open(owner, NO_KEYS, &self.data_progress).await?) })
            .await?;
        let description = self.settings.data.describe();
        if let Some(warning) = description.warning {
            tracing::warn!(backend = description.backend, "{warning}");
            context.conditions().raise("storage-insecure", Severity::Warning, warning, STORAGE_INSECURE_HINT);
        }
        Ok(())
    }

    /// Starts the consensus member and waits until it answers.
    pub(crate) async fn start_member(
        &self,
        context: &Context,
        settings: MemberSettings,
    ) -> Result<Arc<dyn ClusterStore>, Ended> {
        let member = self
            .consensus
            .start(context, settings)
            .map_err(|source| Failure::Disk { what: "the consensus member cannot be started", source })?;
        *self.member.lock().unwrap_or_else(PoisonError::into_inner) = Some(member.clone());
        context.unless_cancelled(self.consensus.ready(&member)).await?;
        Ok(self.consensus.store(&member))
    }

    /// Stores the roles of the node in a new generation.
    pub(crate) async fn store_roles(
        &self,
        context: &Context,
        roles: LocalRoles,
        site: &'static str,
    ) -> Result<(), Ended> {
        let file = self.layout.data.node.roles.clone();
        self.on_disk(context, move || file.store(&roles, site)).await
    }

    /// Writes once through the node's own member, which is what Running means, and is Running.
    pub(crate) async fn finish(
        &self,
        context: &Context,
        journal: &Journal,
        roles: LocalRoles,
        store: &dyn ClusterStore,
    ) -> Result<(), Ended> {
        let file = self.layout.data.node.credentials.clone();
        let path = file.full_path();
        let credentials = self.on_disk(context, move || file.load()).await?;
        let node = node(journal, credentials, &path, roles)?;
        let now = jiff::Timestamp::now().to_string().into_bytes();
        let record = Entry { key: layout::last_start(&node.id), value: now };
        until_cured(context, || async { Ok(store.put("start-record", record.clone()).await?) }).await?;
        if self.publisher.state() != State::Running {
            self.publisher.run(Arc::new(node)).map_err(|_| Ended::Failed(Failure::Gone))?;
        }
        Ok(())
    }
}

/// The node that these credentials, from the file `path`, prove, provided that it is the one of the journal.
pub(crate) fn node(
    journal: &Journal,
    credentials: Option<NodeCredentials>,
    path: &Path,
    roles: LocalRoles,
) -> Result<Node, Failure> {
    let unusable = |source: Box<dyn Error + Send + Sync>| Failure::File {
        what: "credentials of the node",
        path: path.to_owned(),
        source,
    };
    let credentials = credentials.ok_or_else(|| {
        unusable("the file is missing, although the journal says that the node is a member; restore its data".into())
    })?;
    let key = NodeKey::from_secret(credentials.node_key.clone()).public();
    if *key.as_bytes() != journal.node_public_key {
        return Err(unusable(format!("they belong to {}, another node", NodeId::of(&key)).into()));
    }
    if journal.cluster_ca.as_ref().is_some_and(|authority| *authority != credentials.ca_certificate) {
        return Err(unusable("they belong to another cluster than the journal says".into()));
    }
    let certificate = |der: Vec<u8>| Certificate::from_der(der).map_err(|error| unusable(error.into()));
    let authority = certificate(credentials.ca_certificate)?;
    let authority = verify_certificate_authority(authority).map_err(|error| unusable(error.into()))?;
    let certificate = certificate(credentials.node_certificate)?;
    let identity = verify_node_in_cluster(&certificate, &authority).map_err(|error| unusable(error.into()))?;
    if identity.public_key != key {
        return Err(unusable("the certificate is for another key".into()));
    }
    let cluster_id = authority.cluster_id();
    Ok(Node { id: identity.id, public_key: key, certificate, authority, cluster_id, roles })
}

/// A step that the program itself must never take.
pub(crate) fn internal(source: impl Error + Send + Sync + 'static) -> Failure {
    Failure::Disk { what: "internal error", source: source.into() }
}
