//! What a node is while it runs.

use polis_identity::{AuthorityCertificate, Certificate, ClusterId, NodeId, PublicKey};
use polis_storage::LocalRoles;

/// A running node's place in its cluster. Keys are not in here: who needs one is handed it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its public key.
    pub public_key: PublicKey,
    /// Its certificate, issued by the cluster.
    pub certificate: Certificate,
    /// Certificate of the cluster's CA.
    pub authority: AuthorityCertificate,
    /// The cluster's id.
    pub cluster_id: ClusterId,
    /// Its roles, as last known.
    pub roles: LocalRoles,
}
