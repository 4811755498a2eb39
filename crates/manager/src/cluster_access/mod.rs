//! What the Manager needs from a cluster that others run: to be let in, and to be heard.
//!
//! [`ClusterAccess`] is the way there, [`ApplicantLink`] what a machine that is no node yet can ask. Every call is one attempt, or
//! what the way to the cluster makes of one; what its failure means is decided elsewhere, from [`CallFailure`] alone, and so is
//! when to try again.

mod rpc;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{AuthorityCertificate, ClusterId, JoinKey, NodeId, NodeKey, PublicKey};
use polis_parameters::{Labels, RegisterTicket, StoragePolicy};
use polis_proto::common::NodeTpmUsage;
use polis_recovery::RecoveryPublicKey;
use polis_secret::Secret32;
use polis_storage::journal::StorageSecurity;
use polis_supervisor::Context;
use polis_unlock::Epoch;
use tokio::sync::watch;
use tonic::Code;

use crate::unlock_keys::Standing;

pub use rpc::{InCluster, RpcAccess};

/// The way to a cluster. gRPC in a node, a script in the tests of the Manager.
#[async_trait]
pub trait ClusterAccess: Send + Sync + 'static {
    /// Begins to look for a cluster on behalf of a machine that asks for admission. What has to run for that runs as tasks of the
    /// runnable with `context`, until the link is dropped.
    fn apply(&self, context: &Context, applicant: Applicant) -> Arc<dyn ApplicantLink>;

    /// Waits until the leader has answered a heartbeat of this node since the start, and fails when that has taken long enough to
    /// say so. It is waited for again at once.
    async fn heartbeat(&self) -> Result<(), Unheard>;

    /// Waits until something is another than it was `seen`, and returns how it is. Costs nothing while nothing happens; may be dropped
    /// and called again.
    async fn news(&self, seen: &News) -> News;

    /// Which key the cluster keeps for this node, and how the node stands in the consensus.
    async fn check_unlock_key(&self) -> Result<KeptKey, CallFailure>;

    /// Has the cluster keep this key for this node, instead of the one before. May be repeated.
    async fn store_unlock_key(&self, key: &Secret32) -> Result<(), CallFailure>;

    /// The public half of the cluster's recovery key; none as long as it has none, or has not said so.
    fn recovery_key(&self) -> watch::Receiver<Option<[u8; 32]>>;

    /// Has the cluster keep what this node has sealed to the recovery key. May be repeated.
    async fn store_recovery_blob(&self, key: &RecoveryPublicKey, blob: &[u8]) -> Result<(), CallFailure>;
}

/// What may change what a running node does about its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Whether there is contact with a leader.
    pub in_contact: bool,
    /// Which leader.
    pub leader: Option<NodeId>,
    /// The present epoch of the consensus members.
    pub epoch: Option<Epoch>,
}

/// What a cluster keeps of the key of a node's data partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptKey {
    /// Hash of the key, read with a quorum; none if it keeps none.
    pub hash: Option<[u8; 32]>,
    /// How the node stands in the consensus.
    pub standing: Standing,
}

/// The leader has not answered a heartbeat of this node, although it was waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the leader has not answered a heartbeat yet{}", because(reason))]
pub struct Unheard {
    /// Why not, if that is known.
    pub reason: Option<String>,
}

/// A machine that asks for admission, or a node that cannot read who it is yet.
#[derive(Clone)]
pub struct Applicant {
    /// What it shows.
    pub key: ApplicantKey,
    /// Public key of the node that it is or is to become.
    pub node: PublicKey,
    /// CA of the cluster. Whoever else answers is not spoken to.
    pub authority: AuthorityCertificate,
    /// Addresses at which nodes of the cluster may be found.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
}

/// The key that somebody shows who has no certificate of the cluster.
#[derive(Clone)]
pub enum ApplicantKey {
    /// Key of the node that it is to become.
    Node(NodeKey),
    /// Key with which the node joins after each start.
    Join(JoinKey),
}

/// What a machine that asks for admission can ask of a cluster.
#[async_trait]
pub trait ApplicantLink: Send + Sync {
    /// Asks for admission. May be repeated: the cluster knows the node by its key.
    async fn register(&self, request: Registration) -> Result<Admission, CallFailure>;

    /// Becomes a member, once somebody has approved the node. May be repeated with the same content: the answer is the same.
    async fn commit(&self, request: Commitment) -> Result<Membership, CallFailure>;

    /// The cluster's half of the key of the data partition. The key that is shown is the join key; `sealed` is whether the journal was
    /// sealed by a TPM.
    async fn join(&self, sealed: bool) -> Result<Secret32, CallFailure>;

    /// The tombstone of a node, serialized as it was signed; none if the cluster has none for it. Not checked yet.
    async fn tombstone(&self, node: NodeId) -> Result<Option<Vec<u8>>, CallFailure>;
}

/// A wish for admission. Its node is who calls.
#[derive(Clone)]
pub struct Registration {
    /// What shows that somebody has sent the machine.
    pub ticket: RegisterTicket,
    /// Key with which the node will join after each start.
    pub join_key: PublicKey,
    /// Whether the machine has a TPM that it could use.
    pub have_local_tpm: bool,
    /// Labels that the node starts with.
    pub labels: Labels,
}

/// What a cluster answers to a machine that may ask for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What the cluster asks of its nodes' data.
    pub storage_policy: StoragePolicy,
    /// How the data are best protected.
    pub recommended_storage: StorageSecurity,
    /// How the node is to use its TPM.
    pub tpm_usage: NodeTpmUsage,
}

/// What a machine tells when it becomes a member.
#[derive(Clone)]
pub struct Commitment {
    /// The cluster's half of the key of the data partition; none with insecure storage.
    pub cluster_unlock_key: Option<Secret32>,
    /// How the data partition is protected.
    pub storage_security: StorageSecurity,
}

/// What makes a machine a member. Not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Certificate of the cluster's CA, DER.
    pub authority: Vec<u8>,
    /// Certificate of the node, DER.
    pub node_certificate: Vec<u8>,
    /// Who has given it, and where that node is.
    pub leader: (NodeId, IpAddr),
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// No node of the cluster was found that could have answered.
    #[error("no node of the cluster answers: {}", in_words(attempts))]
    Unreachable {
        /// What was tried, in the order of the addresses.
        attempts: Vec<Attempt>,
    },
    /// The cluster has answered, and not what was hoped for.
    #[error("{}{message} ({code:?})", from(endpoint))]
    Answered {
        /// Kind of the answer.
        code: Code,
        /// What the cluster said.
        message: String,
        /// Who said it, if that is known.
        endpoint: Option<SocketAddr>,
        /// Tombstone of the calling node that came with it, serialized as it was signed. Not checked yet.
        tombstone: Option<Vec<u8>>,
    },
    /// The cluster has answered what cannot be.
    #[error("{}its answer cannot be used: {problem}", from(endpoint))]
    Unusable {
        /// Who said it, if that is known.
        endpoint: Option<SocketAddr>,
        /// What is wrong with it.
        problem: String,
    },
}

/// What became of a connection to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Where.
    pub address: SocketAddr,
    /// Why nobody answers there who could help.
    pub problem: AttemptProblem,
}

/// Why nobody answers at an address who could help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptProblem {
    /// It could not be connected to, or broke off, or what is there does not speak for a cluster.
    Failed(String),
    /// A node of another cluster is there.
    OtherCluster {
        /// That cluster, if its node tells.
        found: Option<ClusterId>,
    },
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.address)?;
        match &self.problem {
            AttemptProblem::Failed(cause) => formatter.write_str(cause),
            AttemptProblem::OtherCluster { found: Some(found) } => {
                write!(formatter, "a node of another cluster ({found}) answers there")
            }
            AttemptProblem::OtherCluster { found: None } => {
                formatter.write_str("who answers there is no node of this cluster")
            }
        }
    }
}

/// All attempts in one line.
fn in_words(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "no address is known".to_owned();
    }
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn from(endpoint: &Option<SocketAddr>) -> String {
    endpoint.map_or_else(String::new, |endpoint| format!("{endpoint}: "))
}

fn because(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}
