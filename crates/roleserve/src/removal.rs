//! [`Removal`]: the cluster has let this node go, and how it is known.

use polis_curator::{InvalidTombstone, SignedTombstone};
use polis_identity::{AuthorityCertificate, PublicKey};
use polis_proto::curator_state;
use prost::Message as _;

/// The cluster has let this node go. Whoever learns that stops for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The node was deleted, and this is signed by the cluster's CA.
    Deleted {
        /// Why, as it says.
        reason: String,
    },
    /// The node was decommissioned, and has done what that asks of it.
    Decommissioned,
}

/// A tombstone that was shown to a node proves nothing about it.
#[derive(Debug, thiserror::Error)]
pub enum NoProof {
    /// It is no tombstone.
    #[error("it cannot be read")]
    Unreadable(#[from] prost::DecodeError),
    /// The cluster's CA has not signed it.
    #[error("it is not to be believed")]
    Invalid(#[from] InvalidTombstone),
    /// It is that of another node.
    #[error("it is about the node with the public key {0}")]
    OtherNode(PublicKey),
}

impl Removal {
    /// What a serialized `SignedTombstone` proves that was shown to the node with `own` as its key.
    ///
    /// # Errors
    ///
    /// When it proves nothing about this node.
    pub fn proven_by(
        signed_tombstone: &[u8],
        authority: &AuthorityCertificate,
        own: &PublicKey,
    ) -> Result<Self, NoProof> {
        let wire = curator_state::SignedTombstone::decode(signed_tombstone)?;
        let signed = SignedTombstone::verify(wire, authority)?;
        let tombstone = signed.tombstone();
        if tombstone.public_key != *own {
            return Err(NoProof::OtherNode(tombstone.public_key));
        }
        Ok(Self::Deleted { reason: tombstone.reason.clone() })
    }
}

impl std::fmt::Display for Removal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Deleted { reason } if reason.is_empty() => formatter.write_str("it was deleted"),
            Self::Deleted { reason } => write!(formatter, "it was deleted: {reason}"),
            Self::Decommissioned => formatter.write_str("it was decommissioned"),
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_curator::Tombstone;
    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeKey};

    use super::*;

    #[test]
    fn only_the_own_tombstone_of_the_own_cluster_counts() {
        let own = NodeKey::generate().public();
        let [authority, other] = [(), ()].map(|()| CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME));
        let signed = |authority: &CertificateAuthority, key: PublicKey| {
            let cluster_id = authority.certificate().cluster_id();
            Tombstone { cluster_id, public_key: key, reason: "sold".to_owned() }.sign(authority).encode()
        };
        let judge = |bytes: &[u8]| Removal::proven_by(bytes, authority.certificate(), &own);

        let removal = judge(&signed(&authority, own)).unwrap();
        assert_eq!(removal, Removal::Deleted { reason: "sold".to_owned() });
        assert_eq!(removal.to_string(), "it was deleted: sold");
        assert!(matches!(judge(&signed(&other, own)), Err(NoProof::Invalid(_))));
        let stranger = NodeKey::generate().public();
        assert!(matches!(judge(&signed(&authority, stranger)), Err(NoProof::OtherNode(key)) if key == stranger));
        assert!(judge(b"").is_err());
        assert!(matches!(judge(b"\xff"), Err(NoProof::Unreadable(_))));
    }
}
