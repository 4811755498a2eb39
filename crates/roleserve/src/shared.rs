//! What the workers share: inputs from outside, and the values by which they tell others and each other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polis_condition::{Conditions, Severity};
use polis_identity::{NodeId, RevocationList};
use polis_proto::common::NodeRoles;
use polis_proto::curator_state::DecommissionPhase;
use polis_proto::enrolment::GetTombstoneRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::version::spec::Version;
use polis_rpc::{CallPolicy, ClusterClient, Trust, detail};
use polis_storage::{Disk, Layout, LocalRoles};
use polis_supervisor::{Cancelled, Context, with_causes};
use polis_unlock::SignedMemberList;
use polis_unlock_service::Members;
use prost::Message as _;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::addresses::Addresses;
use crate::announcements::Announce;
use crate::before_vote::BeforeVote;
use crate::contact::Contact;
use crate::control_plane::ControlPlane;
use crate::identity::Identity;
use crate::removal::Removal;
use crate::split_state::SplitState;

/// Name of the condition that is raised while the cluster does not know this node.
pub const UNKNOWN_TO_CLUSTER: &str = "unknown-to-cluster";

/// How long a call of the workers is tried before they say what it failed of, and try again.
pub(crate) const CALL: CallPolicy = CallPolicy::within(Duration::from_secs(10)).each_within(Duration::from_secs(5));

/// What a [`RoleServe`](crate::RoleServe) is made of.
pub struct Settings {
    /// Who this node is, once that is known. All workers wait for it, and nothing on the disk is looked at before.
    pub identity: watch::Receiver<Option<Arc<Identity>>>,
    /// The disk of the node.
    pub disk: Arc<dyn Disk>,
    /// Address at which other nodes reach this one; `None` while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Runs the consensus member and the curator of this node.
    pub control_plane: ControlPlane,
    /// Asked before a new consensus member starts for the first time.
    pub before_vote: Arc<dyn BeforeVote>,
    /// Version of this build, which the node reports to the cluster.
    pub version: Version,
    /// Where an operator says that nodes are: those given at the start and those set later, together.
    pub peers: watch::Receiver<Vec<(NodeId, IpAddr)>>,
    /// Whether the node announces itself on its link while it has no quorum.
    pub announce: Announce,
    /// What the node knows of the cluster's members, once it can be kept. What the leader tells is taken over there, and what others
    /// have told is known here.
    pub members: watch::Receiver<Option<Members>>,
    /// How the node has split its cluster unlock key; `None` while it has not.
    pub split: watch::Receiver<Option<SplitState>>,
}

/// What the cluster has recorded about this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnRecord {
    /// Its roles, with what a new consensus member needs.
    pub(crate) roles: NodeRoles,
}

/// What a node that runs no curator knows of whom the cluster has let go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrustParts {
    pub(crate) revocations: Option<RevocationList>,
    pub(crate) removed_nodes: BTreeMap<NodeId, Vec<u8>>,
    /// The present stream of orders has told all.
    pub(crate) orders_fresh: bool,
    /// The present stream of nodes has told all.
    pub(crate) nodes_fresh: bool,
}

/// What the workers share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    /// 16 random bytes, none of them zero, new in each process.
    pub(crate) boot_id: [u8; 16],
    pub(crate) addresses: Addresses,
    /// Held by whoever changes the files of the consensus member, from the first look to the last write.
    pub(crate) member_files: Arc<Mutex<()>>,
    pub(crate) cluster: watch::Sender<Option<ClusterClient>>,
    pub(crate) record: watch::Sender<Option<OwnRecord>>,
    pub(crate) roles: watch::Sender<Option<LocalRoles>>,
    pub(crate) contact: watch::Sender<Contact>,
    pub(crate) trust_parts: watch::Sender<TrustParts>,
    pub(crate) trust: watch::Sender<Arc<Trust>>,
    /// The newest signed list that is durable here.
    pub(crate) members: watch::Sender<Option<Arc<SignedMemberList>>>,
    pub(crate) decommission: watch::Sender<DecommissionPhase>,
    /// Public half of the recovery key, once the cluster has told one.
    pub(crate) recovery_key: watch::Sender<Option<[u8; 32]>>,
    pub(crate) removed: watch::Sender<Option<Removal>>,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            layout: Layout::new(Arc::clone(&settings.disk)),
            settings,
            boot_id: boot_id(),
            addresses: Addresses::new(),
            member_files: Arc::default(),
            cluster: watch::Sender::new(None),
            record: watch::Sender::new(None),
            roles: watch::Sender::new(None),
            contact: watch::Sender::default(),
            trust_parts: watch::Sender::default(),
            trust: watch::Sender::default(),
            members: watch::Sender::new(None),
            decommission: watch::Sender::new(DecommissionPhase::None),
            recovery_key: watch::Sender::new(None),
            removed: watch::Sender::new(None),
        }
    }

    /// Waits until it is known who this node is.
    pub(crate) async fn identity(&self, context: &Context) -> Result<Arc<Identity>, Cancelled> {
        known(context, self.settings.identity.clone()).await
    }

    /// Waits until what is known of the members can be kept.
    pub(crate) async fn members(&self, context: &Context) -> Result<Members, Cancelled> {
        known(context, self.settings.members.clone()).await
    }

    /// Waits for the client of the cluster.
    pub(crate) async fn cluster(&self, context: &Context) -> Result<ClusterClient, Cancelled> {
        known(context, self.cluster.subscribe()).await
    }

    /// Changes the files of the consensus member, alone.
    pub(crate) async fn on_member_files<T: Send + 'static>(
        &self,
        context: &Context,
        change: impl FnOnce(&Arc<dyn Disk>, &Layout) -> T + Send + 'static,
    ) -> T {
        let (lock, disk, layout) =
            (Arc::clone(&self.member_files), Arc::clone(&self.settings.disk), self.layout.clone());
        context
            .blocking(move || {
                let _alone = lock.lock().unwrap_or_else(PoisonError::into_inner);
                change(&disk, &layout)
            })
            .await
    }

    /// Looks whether a call was refused because the cluster has let this node go, or does not know it.
    pub(crate) async fn look_at_refusal(&self, conditions: &Conditions, identity: &Identity, status: &Status) {
        if let Some(detail) = detail::removed_node(status) {
            self.take_tombstone(identity, &detail.signed_tombstone);
        } else if status.code() == Code::NotFound {
            self.ask_for_tombstone(conditions, identity).await;
        }
    }

    /// The cluster has no record of this node: asks whether it was deleted. If nobody can prove that, the cluster may be older
    /// than the node, as after a restore, and it is asked again (window W22).
    pub(crate) async fn ask_for_tombstone(&self, conditions: &Conditions, identity: &Identity) {
        let Some(cluster) = self.cluster.borrow().clone() else { return };
        let asked = cluster.call(CALL, |channel| async move {
            let request = GetTombstoneRequest { node_id: identity.node_id().to_string() };
            EnrolmentClient::new(channel).get_tombstone(request).await
        });
        match asked.await.map(|answer| answer.into_inner().tombstone) {
            Ok(Some(tombstone)) => self.take_tombstone(identity, &tombstone.encode_to_vec()),
            Ok(None) => {
                let (node, cluster) = (identity.node_id(), identity.cluster_id());
                conditions.raise(
                    UNKNOWN_TO_CLUSTER,
                    Severity::Error,
                    format!(
                        "the cluster {cluster} has no record of this node ({node}), and nothing says that it was deleted: the \
                         cluster may have been restored from a state that is older than the node"
                    ),
                    "the node goes on asking, and nothing was changed; if it is to be a new node, start it with an empty root",
                );
            }
            // Whoever asked tries again.
            Err(error) => tracing::debug!(%error, "cannot ask whether this node was deleted"),
        }
    }

    /// A tombstone was shown to this node.
    pub(crate) fn take_tombstone(&self, identity: &Identity, signed_tombstone: &[u8]) {
        match Removal::proven_by(signed_tombstone, &identity.authority, &identity.public_key()) {
            Ok(removal) => self.take_removal(removal),
            Err(no_proof) => {
                tracing::warn!(
                    reason = with_causes(&no_proof),
                    "ignored what was shown as proof of this node's deletion"
                );
            }
        }
    }

    /// The cluster has let this node go. The first reason stays.
    pub(crate) fn take_removal(&self, removal: Removal) {
        self.removed.send_if_modified(|known| {
            let news = known.is_none();
            if news {
                tracing::error!("the cluster has let this node go: {removal}");
                *known = Some(removal);
            }
            news
        });
    }
}

/// Waits until a watched value is there.
pub(crate) async fn known<T: Clone>(context: &Context, mut value: watch::Receiver<Option<T>>) -> Result<T, Cancelled> {
    loop {
        let waited = context.unless_cancelled(value.wait_for(Option::is_some)).await?;
        if let Some(known) = waited.ok().and_then(|known| known.clone()) {
            return Ok(known);
        }
        // Without a sender there will never be one.
        context.cancelled().await;
    }
}

/// Waits until a watched value changes; for ever, when it never will again because its sender is gone.
pub(crate) async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn boot_id() -> [u8; 16] {
    std::array::from_fn(|_| rand::random_range(1..=u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_has_no_zeros_and_is_another_each_time() {
        let ids: Vec<[u8; 16]> = (0..1000).map(|_| boot_id()).collect();
        assert!(ids.iter().flatten().all(|byte| *byte != 0));
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
