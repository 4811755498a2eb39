//! Proof that a node was deleted, which the cluster's authority signs for those who cannot ask the cluster.
//!
//! Anybody who knows the certificate of the authority can check it. It is signed under a prefix of its own, so that nothing else
//! that is signed can be read as one.

use polis_identity::{
    AuthorityCertificate, CertificateAuthority, ClusterId, InvalidPublicKeyError, NodeId, PublicKey, StatementKind,
    WrongSignatureError,
};
use polis_proto::curator_state;
use prost::Message as _;

/// What a signed tombstone is signed as (`polis/curator/v1/state.proto`).
const KIND: StatementKind = StatementKind::new("polis tombstone v1");

/// A signed tombstone that cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTombstone {
    /// The cluster's authority did not sign it.
    #[error("it was not signed by the certificate authority of the cluster {cluster}")]
    Signature {
        /// The cluster.
        cluster: ClusterId,
        /// Why the signature is not good.
        #[source]
        source: WrongSignatureError,
    },
    /// The signed bytes are no such message.
    #[error("it is signed, but cannot be read")]
    Message(#[from] prost::DecodeError),
    /// It names another cluster than the one whose authority signed it.
    #[error("it is about the cluster {found:?}, but was signed by the authority of {expected}")]
    OtherCluster {
        /// What it says.
        found: String,
        /// The cluster of the authority.
        expected: ClusterId,
    },
    /// The key of the node is none.
    #[error("the public key of {node} is not a public key")]
    Key {
        /// Node that it is said to belong to.
        node: String,
        /// Why it is not.
        #[source]
        source: InvalidPublicKeyError,
    },
    /// The id of the node is not that of its key.
    #[error("it calls {expected} by the id {found:?}")]
    Id {
        /// What it says.
        found: String,
        /// What the key says.
        expected: NodeId,
    },
}

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
    ) -> Result<Self, InvalidTombstone> {
        let cluster = authority.cluster_id();
        authority
            .public_key()
            .verify_statement(KIND, &wire.tombstone, &wire.signature)
            .map_err(|source| InvalidTombstone::Signature { cluster, source })?;
        let message = curator_state::Tombstone::decode(&wire.tombstone[..])?;
        if message.cluster_id != cluster.to_string() {
            return Err(InvalidTombstone::OtherCluster { found: message.cluster_id, expected: cluster });
        }
        let public_key = PublicKey::try_from(&message.public_key[..])
            .map_err(|source| InvalidTombstone::Key { node: message.node_id.clone(), source })?;
        let expected = NodeId::of(&public_key);
        if message.node_id != expected.to_string() {
            return Err(InvalidTombstone::Id { found: message.node_id, expected });
        }
        Ok(Self { tombstone: Tombstone { cluster_id: cluster, public_key, reason: message.reason }, wire })
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

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_unlock::{Epoch, InvalidMemberList, MemberList, SignedMemberList};

    use super::*;

    fn tombstone(authority: &CertificateAuthority) -> Tombstone {
        let cluster_id = authority.certificate().cluster_id();
        Tombstone { cluster_id, public_key: NodeKey::generate().public(), reason: "test".into() }
    }

    #[test]
    fn it_is_believed_if_the_authority_of_its_cluster_has_signed_it() {
        let authority = CertificateAuthority::generate("Test CA");
        let tombstone = tombstone(&authority);
        let signed = tombstone.clone().sign(&authority);
        let read = SignedTombstone::verify(signed.wire().clone(), authority.certificate()).unwrap();
        assert_eq!((read.tombstone(), read.tombstone().node_id()), (&tombstone, NodeId::of(&tombstone.public_key)));
        let other = CertificateAuthority::generate("Other CA");
        let outcome = SignedTombstone::verify(signed.wire().clone(), other.certificate());
        assert!(matches!(outcome, Err(InvalidTombstone::Signature { .. })), "{outcome:?}");
    }

    #[test]
    fn what_the_authority_should_not_have_signed_is_refused() {
        let authority = CertificateAuthority::generate("Test CA");
        type Change = fn(&mut curator_state::Tombstone);
        let cases: [(&str, Change); 3] = [
            ("it is about the cluster \"0\"", |message| message.cluster_id = "0".into()),
            ("the public key of", |message| message.public_key.truncate(31)),
            ("it calls", |message| message.node_id = "metropolis-0".into()),
        ];
        for (expected, change) in cases {
            let signed = tombstone(&authority).sign(&authority);
            let mut message = curator_state::Tombstone::decode(&signed.wire().tombstone[..]).unwrap();
            change(&mut message);
            let tombstone = message.encode_to_vec();
            let signature = authority.key().sign_statement(KIND, &tombstone).to_vec();
            let wire = curator_state::SignedTombstone { tombstone, signature };
            let error = SignedTombstone::verify(wire, authority.certificate()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error:?} instead of {expected:?}");
        }
    }

    #[test]
    fn one_kind_of_statement_is_never_another() {
        let authority = CertificateAuthority::generate("Test CA");
        let signed = tombstone(&authority).sign(&authority);
        let as_list = curator_state::SignedMemberList {
            list: signed.wire().tombstone.clone(),
            signature: signed.wire().signature.clone(),
        };
        let outcome = SignedMemberList::verify(as_list, authority.certificate());
        assert!(matches!(outcome, Err(InvalidMemberList::Signature { .. })), "{outcome:?}");
        let list = MemberList::new(authority.certificate().cluster_id(), Epoch::FIRST, Vec::new()).sign(&authority);
        let as_tombstone = curator_state::SignedTombstone {
            tombstone: list.wire().list.clone(),
            signature: list.wire().signature.clone(),
        };
        let outcome = SignedTombstone::verify(as_tombstone, authority.certificate());
        assert!(matches!(outcome, Err(InvalidTombstone::Signature { .. })), "{outcome:?}");
    }
}
