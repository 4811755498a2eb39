//! What a first start and every later one have in common.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_condition::Severity;
use polis_curator::{ClusterStore, Entry, layout};
use polis_identity::{
    Certificate, JoinKey, NodeId, NodeKey, PublicKey, ShareKey, verify_certificate_authority, verify_node_in_cluster,
};
use polis_roleserve::Identity;
use polis_storage::{Journal, LocalRoles, NodeCredentials};
use polis_supervisor::{Context, with_causes};

use crate::consensus::{ConsensusProvider, MemberSettings};
use crate::failure::Failure;
use crate::manager::Inner;
use crate::node::Node;
use crate::pace::Pace;
use crate::state::State;
use crate::trouble::{Curable, Ended, Trouble, until_cured};
use crate::verdict::CLUSTER_UNREACHABLE;

/// Roles of the node that founds a cluster (metropolis.md, G.6).
pub(crate) const FIRST_ROLES: LocalRoles =
    LocalRoles { consensus_member: true, kubernetes_controller: true, kubernetes_worker: false };

impl<C: ConsensusProvider> Inner<C> {
    /// Does work on the disk, away from the threads that serve everything else, until it succeeds or its trouble is final.
    /// Nothing of it happens any more once the node's membership has ended.
    pub(crate) async fn on_disk<T, E, F>(&self, context: &Context, work: F) -> Result<T, Ended>
    where
        T: Send + 'static,
        E: Into<Trouble> + Send + 'static,
        F: Fn() -> Result<T, E> + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        until_cured(context, || {
            let (work, gate) = (work.clone(), self.gate.clone());
            async move {
                match context.blocking(move || gate.pass(&*work)).await {
                    Some(outcome) => outcome.map_err(Into::into),
                    // Whoever has closed the gate ends this as well.
                    None => std::future::pending().await,
                }
            }
        })
        .await
    }

    /// Starts the consensus member. That it answers is another matter.
    pub(crate) async fn start_member(&self, context: &Context, settings: MemberSettings) -> Result<C::Member, Ended> {
        until_cured(context, || async {
            self.consensus.start(context, settings.clone()).await.map_err(|error| {
                Trouble::curable(
                    "consensus-cannot-start",
                    format!("the consensus member cannot be started: {}", with_causes(&*error)),
                    "it needs a free port on 127.0.0.1 and a root that can be named from everywhere; the node goes on by itself",
                )
            })
        })
        .await
    }

    /// The credentials of a node that has some, and where they are.
    pub(crate) async fn load_credentials(&self, context: &Context) -> Result<(NodeCredentials, PathBuf), Ended> {
        let file = self.layout.data.node.credentials.clone();
        let path = file.full_path();
        match self.on_disk(context, move || file.load()).await? {
            Some(credentials) => Ok((credentials, path)),
            None => Err(Ended::Failed(Failure::File {
                what: "credentials of the node",
                path,
                source: "the file is missing, although the journal says that the node is a member; restore its data"
                    .into(),
            })),
        }
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

    /// Loads what the node proves itself with, and publishes it: from here on others can act for the node, also before it
    /// runs.
    pub(crate) async fn identify(
        &self,
        context: &Context,
        journal: &Journal,
        roles: LocalRoles,
    ) -> Result<Node, Ended> {
        self.know_members(context, journal).await?;
        let (credentials, path) = self.load_credentials(context).await?;
        let key = NodeKey::from_secret(credentials.node_key.clone());
        let node = node(journal, credentials, &path, roles)?;
        let identity = Identity {
            key,
            certificate: node.certificate.clone(),
            authority: node.authority.clone(),
            join_key: JoinKey::from_secret(journal.join_key.clone()),
            share_public: ShareKey::from_secret(journal.share_key.clone()).public(),
        };
        self.publisher.identify(identity);
        Ok(node)
    }

    /// Writes once through the node's own member, which is what Running means for a node that has one, and is Running.
    pub(crate) async fn run_as_member(
        &self,
        context: &Context,
        node: Node,
        store: &dyn ClusterStore,
    ) -> Result<(), Ended> {
        let now = jiff::Timestamp::now().to_string().into_bytes();
        let record = Entry { key: layout::last_start(&node.id), value: now };
        until_cured(context, || async { Ok(store.put("start-record", record.clone()).await?) }).await?;
        self.run_as(node)
    }

    /// Waits until the leader has answered one heartbeat, which is what Running means for a node without a member, and is Running.
    pub(crate) async fn run_as_guest(&self, context: &Context, node: Node) -> Result<(), Ended> {
        until_cured(context, || async {
            self.settings.access.heartbeat().await.map_err(|unheard| {
                let Node { id, cluster_id, .. } = &node;
                Trouble::Curable(Curable {
                    condition: CLUSTER_UNREACHABLE,
                    severity: Severity::Error,
                    message: format!("{id} belongs to the cluster {cluster_id} and looks for its leader: {unheard}"),
                    hint: "see whether a quorum of the consensus members runs, with `polis cluster health`; `polis node peers set` \
                           gives this node other addresses; it goes on by itself"
                        .to_owned(),
                    pace: Pace::AtOnce,
                })
            })
        })
        .await?;
        self.run_as(node)
    }

    fn run_as(&self, node: Node) -> Result<(), Ended> {
        if self.publisher.state() != State::Running {
            self.publisher.run(Arc::new(node)).map_err(|_| Ended::Failed(Failure::Gone))?;
        }
        Ok(())
    }
}

/// The node that these credentials, from the file `path`, prove, provided that it is the one of the journal.
pub(crate) fn node(
    journal: &Journal,
    credentials: NodeCredentials,
    path: &Path,
    roles: LocalRoles,
) -> Result<Node, Failure> {
    let unusable = |source: Box<dyn Error + Send + Sync>| Failure::File {
        what: "credentials of the node",
        path: path.to_owned(),
        source,
    };
    let key = NodeKey::from_secret(credentials.node_key.clone()).public();
    if *key.as_bytes() != journal.node_public_key {
        return Err(unusable(format!("they belong to {}, another node", NodeId::of(&key)).into()));
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
    if journal.cluster_id.as_ref().is_some_and(|expected| *expected != cluster_id.to_string()) {
        return Err(unusable("they belong to another cluster than the journal says".into()));
    }
    Ok(Node { id: identity.id, public_key: key, certificate, authority, cluster_id, roles })
}

/// The node that the journal names.
pub(crate) fn node_id(journal: &Journal) -> Result<NodeId, Failure> {
    PublicKey::new(journal.node_public_key).map(|key| NodeId::of(&key)).map_err(|source| Failure::Disk {
        what: "the enrolment journal cannot be used: it does not name a node",
        source: source.into(),
    })
}

/// A step that the journal does not allow, and that the program must never come to.
pub(crate) fn internal(source: impl Error + Send + Sync + 'static) -> Failure {
    Failure::Internal { what: "a step that the enrolment journal does not allow", source: source.into() }
}
