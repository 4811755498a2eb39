//! What a snapshot file says of itself.

use std::net::IpAddr;

use polis_identity::{ClusterId, NodeId};
use polis_proto::recovery as proto;
use prost::Message as _;

use crate::Fingerprint;

/// What a snapshot is of. Not secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// Revision of etcd.
    pub revision: u64,
    /// Members of the consensus.
    pub members: Vec<SnapshotMember>,
    /// When it was taken: seconds since 1970, by the clock of its node; 0 if that clock was never right.
    pub taken_at_seconds: i64,
    /// Version of Polis that has taken it.
    pub polis_version: String,
    /// Version of the etcd that it is of.
    pub etcd_version: String,
    /// Length of the content, in bytes.
    pub content_length: u64,
    /// SHA-256 of the content.
    pub content_sha256: [u8; 32],
}

/// A member of the consensus at the time of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMember {
    /// The node.
    pub node: NodeId,
    /// Where it was last known to be.
    pub address: Option<IpAddr>,
}

/// How the content of a snapshot file is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: everybody can read the cluster's state in it, keys included.
    Plaintext,
    /// The recovery key with this name opens it.
    Sealed(Fingerprint),
}

/// A field of a header with an impossible value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    /// It is no message.
    #[error("it is no message of the expected kind")]
    NotAMessage(#[source] prost::DecodeError),
    /// One of its fields is wrong.
    #[error("its field {field} is wrong")]
    Field {
        /// Name of the field in the schema.
        field: &'static str,
    },
}

impl SnapshotHeader {
    pub(super) fn to_payload(&self, protection: Protection) -> Vec<u8> {
        let members = self.members.iter().map(|member| proto::snapshot_header::Member {
            node_id: member.node.to_string(),
            address: member.address.map(|address| address.to_string()).unwrap_or_default(),
        });
        let message = proto::SnapshotHeader {
            cluster_id: self.cluster.to_string(),
            revision: self.revision,
            members: members.collect(),
            taken_at_seconds: self.taken_at_seconds,
            polis_version: self.polis_version.clone(),
            etcd_version: self.etcd_version.clone(),
            content_length: self.content_length,
            content_sha256: self.content_sha256.to_vec(),
            recovery_key_fingerprint: match protection {
                Protection::Plaintext => String::new(),
                Protection::Sealed(fingerprint) => fingerprint.to_string(),
            },
        };
        message.encode_to_vec()
    }

    pub(super) fn from_payload(payload: &[u8]) -> Result<(Self, Protection), InvalidHeader> {
        let message = proto::SnapshotHeader::decode(payload).map_err(InvalidHeader::NotAMessage)?;
        let field = |field| InvalidHeader::Field { field };
        let members = message.members.iter().map(|member| {
            let address = (!member.address.is_empty()).then(|| member.address.parse());
            Ok(SnapshotMember {
                node: member.node_id.parse().map_err(|_| field("node_id"))?,
                address: address.transpose().map_err(|_| field("address"))?,
            })
        });
        let protection = match message.recovery_key_fingerprint.as_str() {
            "" => Protection::Plaintext,
            text => Protection::Sealed(text.parse().map_err(|_| field("recovery_key_fingerprint"))?),
        };
        let header = Self {
            cluster: message.cluster_id.parse().map_err(|_| field("cluster_id"))?,
            revision: message.revision,
            members: members.collect::<Result<_, _>>()?,
            taken_at_seconds: message.taken_at_seconds,
            polis_version: message.polis_version,
            etcd_version: message.etcd_version,
            content_length: message.content_length,
            content_sha256: message.content_sha256.try_into().map_err(|_| field("content_sha256"))?,
        };
        Ok((header, protection))
    }
}
