//! Proof that a node was deleted.

use polis_identity::{AuthorityCertificate, CertificateAuthority, ClusterId, NodeId, PublicKey, StatementKind};
use polis_proto::curator_state;
use prost::Message as _;

use super::{InvalidStatement, check_cluster};

/// What a signed tombstone is signed as (`polis/curator/v1/state.proto`).
const KIND: StatementKind = StatementKind::new("polis tombstone v1");

/// A node that was deleted, for good: its key is never taken again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Cluster that it was deleted from.
    pub cluster_id: ClusterId,
    /// Key of the node, from which its id follows.
    pub public_key: PublicKey,
    /// Why, for people.
    pub reason: String,
}

impl Tombstone {
    /// The node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId::of(&self.public_key)
    }

    /// Signs the tombstone.
    ///
    /// # Panics
    ///
    /// When the authority is that of another cluster.
    #[must_use]
    pub fn sign(self, authority: &CertificateAuthority) -> SignedTombstone {
        assert_eq!(self.cluster_id, authority.certificate().cluster_id(), "a cluster signs what is its own");
        let tombstone = curator_state::Tombstone {
            cluster_id: self.cluster_id.to_string(),
            node_id: self.node_id().to_string(),
            public_key: self.public_key.as_bytes().to_vec(),
            reason: self.reason.clone(),
        };
        let tombstone = tombstone.encode_to_vec();
        let signature = authority.key().sign_statement(KIND, &tombstone).to_vec();
        SignedTombstone { tombstone: self, wire: curator_state::SignedTombstone { tombstone, signature } }
    }
}

/// A tombstone that the cluster's authority has signed.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedTombstone {
    tombstone: Tombstone,
    wire: curator_state::SignedTombstone,
}

impl SignedTombstone {
    /// Checks a signed tombstone against the authority of the cluster.
    ///
    /// # Errors
    ///
    /// When it is not signed by the authority, or what is signed is no tombstone of its cluster.
    pub fn verify(
        wire: curator_state::SignedTombstone,
        authority: &AuthorityCertificate,
    ) -> Result<Self, InvalidStatement> {
        let cluster = authority.cluster_id();
        authority
            .public_key()
            .verify_statement(KIND, &wire.tombstone, &wire.signature)
            .map_err(|source| InvalidStatement::Signature { cluster, source })?;
        let message = curator_state::Tombstone::decode(&wire.tombstone[..])?;
        let cluster_id = check_cluster(message.cluster_id, cluster)?;
        let public_key = PublicKey::try_from(&message.public_key[..]).map_err(|source| InvalidStatement::Key {
            field: "public key",
            node: message.node_id.clone(),
            source,
        })?;
        let expected = NodeId::of(&public_key);
        if message.node_id != expected.to_string() {
            return Err(InvalidStatement::Id { found: message.node_id, expected });
        }
        Ok(Self { tombstone: Tombstone { cluster_id, public_key, reason: message.reason }, wire })
    }

    /// What it says.
    #[must_use]
    pub const fn tombstone(&self) -> &Tombstone {
        &self.tombstone
    }

    /// The message, as it was signed.
    #[must_use]
    pub const fn wire(&self) -> &curator_state::SignedTombstone {
        &self.wire
    }

    /// The bytes to store, and to show to the node.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.wire.encode_to_vec()
    }
}
