//! What the Manager needs from consensus: a member that can be started, waited for and written through.

use std::sync::Arc;

use async_trait::async_trait;
use polis_consensus::PeerPki;
use polis_curator::ClusterStore;
use polis_identity::PublicKey;
use polis_supervisor::{BoxError, Context};

/// Starts this node's consensus member. etcd in a node, something simpler in the tests of the Manager.
#[async_trait]
pub trait ConsensusProvider: Send + Sync + 'static {
    /// A started member. Clones are the same member.
    type Member: Clone + Send + Sync + 'static;

    /// Starts the member, with data that may be absent, half made or whole. If there is a member already, that is returned and
    /// goes on as it is: a later life of the Manager finds the one that an earlier life has started.
    ///
    /// # Errors
    ///
    /// When the system does not give what a member needs, such as a port on loopback; it is tried again. What happens to the
    /// member later is its own business, and shows as conditions.
    async fn start(&self, context: &Context, settings: MemberSettings) -> Result<Self::Member, BoxError>;

    /// Waits until the member answers for the cluster. There is no deadline: a slow member shows as conditions (window S5).
    async fn ready(&self, member: &Self::Member);

    /// Waits until it is known that the member does not answer for the cluster, for a reason that is in order: it has no vote
    /// yet, or no more, or it was stopped because the cluster has taken the role from this node.
    async fn without_vote(&self, member: &Self::Member);

    /// The member of this node, whoever has started it; none while there is none.
    fn member(&self) -> Option<Self::Member>;

    /// Stops the member, as its data are lost, and returns when nothing of it runs any more. None is started before
    /// [`ConsensusProvider::resume`], by whomever.
    async fn suspend(&self);

    /// Lets a member be started again.
    fn resume(&self);

    /// The store that the member gives access to.
    fn store(&self, member: &Self::Member) -> Arc<dyn ClusterStore>;
}

/// What a member is started with.
#[derive(Clone)]
pub struct MemberSettings {
    /// Credentials of the member, and with them who it is.
    pub credentials: PeerPki,
    /// Public key of the node.
    pub public_key: PublicKey,
    /// What to do when its data are absent.
    pub without_data: WithoutData,
}

/// What a member does whose data are absent. To join a cluster with a new member is not the Manager's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutData {
    /// It founds the cluster.
    Found,
    /// Nothing: its data must be there, since the cluster has been seen in them.
    Refuse,
}
