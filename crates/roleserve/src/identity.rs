//! [`Identity`]: who this node is in its cluster, with the keys to prove it.

use polis_identity::{
    AuthorityCertificate, Certificate, ClusterId, JoinKey, NodeId, NodeKey, PublicKey, SharePublicKey,
};

/// Who this node is in its cluster. The Manager publishes it as soon as the credentials are there, before the node is Running;
/// what is in it has been checked against each other. Has no `Debug`: it holds keys.
#[derive(Clone)]
pub struct Identity {
    /// The node's key.
    pub key: NodeKey,
    /// The node's certificate, issued by the cluster for that key.
    pub certificate: Certificate,
    /// Certificate of the cluster's CA.
    pub authority: AuthorityCertificate,
    /// Key with which the node signs its announcements; it is the one in its record.
    pub join_key: JoinKey,
    /// Key to which shares of other nodes' unlock keys are encrypted; the node reports it to the cluster.
    pub share_public: SharePublicKey,
}

impl Identity {
    /// Id of the node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId::of(&self.public_key())
    }

    /// Public key of the node.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// Id of the cluster.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.authority.cluster_id()
    }
}
