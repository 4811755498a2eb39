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

    /// Starts the member as a child of the runnable with `context`. Called once in each life of the Manager, with data that
    /// may be absent, half made or whole.
    ///
    /// # Errors
    ///
    /// When the system does not give what a member needs, such as a port on loopback; it is tried again. What happens to the
    /// member later is its own business, and shows as conditions.
    fn start(&self, context: &Context, settings: MemberSettings) -> Result<Self::Member, BoxError>;

    /// Waits until the member answers for the cluster. There is no deadline: a slow member shows as conditions (window S5).
    async fn ready(&self, member: &Self::Member);

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

/// What a member does whose data are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutData {
    /// It founds the cluster.
    Found,
    /// Nothing: its data must be there, since the cluster has been seen in them.
    Refuse,
}
