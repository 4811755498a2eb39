//! The records of a node's disks, typed and checked: schemas in `polis/storage/v1/storage.proto`.

use polis_proto::storage;
use polis_secret::Secret32;
use prost::Message;
use zeroize::{Zeroize as _, Zeroizing};

use crate::envelope::Format;
use crate::record::{InvalidRecord, Record};

mod cluster;
mod network;
mod recovery;

pub use cluster::{
    AnnouncementCounter, ClusterDirectory, DirectoryNode, MemberJoin, OperatorPeer, OperatorPeers, Revocations,
    SignedMembers, UnlockShares,
};
pub use network::KeptNetwork;
pub use recovery::{RECOVERY_BLOB_LIMIT, RecoveryBlob};

/// Longest payload of a credentials file: a few certificates of under 2 KiB each and a list of revocations that grows by
/// some 40 bytes with each removed node.
const CREDENTIALS_LIMIT: usize = 1024 * 1024;
/// Longest payload of the small records: a name, or a few flags.
const SMALL_LIMIT: usize = 4096;

/// First file on a formatted data partition: whose it is. Its presence ends the formatting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMarker {
    /// Node that formatted it.
    pub node_id: String,
    /// Name of the backend.
    pub backend: String,
}

impl Record for PartitionMarker {
    const FORMAT: Format = Format { magic: *b"POLISDAT", version: 1, payload_limit: SMALL_LIMIT };
    const LOAD_SITE: &'static str = "data/partition/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let message = storage::DataPartition { node_id: self.node_id.clone(), backend: self.backend.clone() };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::DataPartition { node_id, backend } =
            storage::DataPartition::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("node_id", node_id.as_bytes())?;
        InvalidRecord::not_empty("backend", backend.as_bytes())?;
        Ok(Self { node_id, backend })
    }
}

/// The node's identity in its cluster: one file, so that it is never half there. Has no `Debug`: it holds a key.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeCredentials {
    /// Ed25519 private key.
    pub node_key: Secret32,
    /// DER.
    pub node_certificate: Vec<u8>,
    /// Certificate of the cluster's CA, DER.
    pub ca_certificate: Vec<u8>,
}

impl Record for NodeCredentials {
    const FORMAT: Format = Format { magic: *b"POLISCRD", version: 1, payload_limit: CREDENTIALS_LIMIT };
    const LOAD_SITE: &'static str = "node/credentials/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let mut message = storage::NodeCredentials {
            node_key: self.node_key.expose().to_vec(),
            node_certificate: self.node_certificate.clone(),
            ca_certificate: self.ca_certificate.clone(),
        };
        let payload = Zeroizing::new(message.encode_to_vec());
        message.node_key.zeroize();
        payload
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::NodeCredentials { node_key, node_certificate, ca_certificate } =
            storage::NodeCredentials::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        let node_key = Zeroizing::new(node_key);
        let node_key = Secret32::try_from(&node_key[..]).map_err(|error| InvalidRecord::field("node_key", error))?;
        InvalidRecord::not_empty("node_certificate", &node_certificate)?;
        InvalidRecord::not_empty("ca_certificate", &ca_certificate)?;
        Ok(Self { node_key, node_certificate, ca_certificate })
    }
}

/// What etcd needs to speak to its peers: one file, from which PEM files are written at each start. Has no `Debug`: it
/// holds keys.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Certificate of the peers' CA, DER.
    pub ca_certificate: Vec<u8>,
    /// Private key of the peers' CA, PKCS#8; absent once the cluster holds it.
    pub ca_key: Option<Zeroizing<Vec<u8>>>,
    /// Revocations, DER.
    pub crl: Vec<u8>,
    /// This member's certificate, DER.
    pub member_certificate: Vec<u8>,
    /// Private key of the member certificate, PKCS#8.
    pub member_key: Zeroizing<Vec<u8>>,
}

impl Record for PeerCredentials {
    const FORMAT: Format = Format { magic: *b"POLISPEE", version: 1, payload_limit: CREDENTIALS_LIMIT };
    const LOAD_SITE: &'static str = "etcd/credentials/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let mut message = storage::PeerCredentials {
            ca_certificate: self.ca_certificate.clone(),
            ca_key: self.ca_key.as_ref().map(|key| key.to_vec()),
            crl: self.crl.clone(),
            member_certificate: self.member_certificate.clone(),
            member_key: self.member_key.to_vec(),
        };
        let payload = Zeroizing::new(message.encode_to_vec());
        message.ca_key.zeroize();
        message.member_key.zeroize();
        payload
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::PeerCredentials { ca_certificate, ca_key, crl, member_certificate, member_key } =
            storage::PeerCredentials::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        let (ca_key, member_key) = (ca_key.map(Zeroizing::new), Zeroizing::new(member_key));
        InvalidRecord::not_empty("ca_certificate", &ca_certificate)?;
        if let Some(ca_key) = &ca_key {
            InvalidRecord::not_empty("ca_key", ca_key)?;
        }
        InvalidRecord::not_empty("crl", &crl)?;
        InvalidRecord::not_empty("member_certificate", &member_certificate)?;
        InvalidRecord::not_empty("member_key", &member_key)?;
        Ok(Self { ca_certificate, ca_key, crl, member_certificate, member_key })
    }
}

/// What the node last knew its roles to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalRoles {
    /// It runs a member of the cluster's consensus.
    pub consensus_member: bool,
    /// It runs the Kubernetes control plane.
    pub kubernetes_controller: bool,
    /// It runs Kubernetes workloads.
    pub kubernetes_worker: bool,
}

impl Record for LocalRoles {
    const FORMAT: Format = Format { magic: *b"POLISROL", version: 1, payload_limit: SMALL_LIMIT };
    const LOAD_SITE: &'static str = "node/roles/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let Self { consensus_member, kubernetes_controller, kubernetes_worker } = *self;
        let message = storage::LocalRoles { consensus_member, kubernetes_controller, kubernetes_worker };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::LocalRoles { consensus_member, kubernetes_controller, kubernetes_worker } =
            storage::LocalRoles::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        Ok(Self { consensus_member, kubernetes_controller, kubernetes_worker })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_credentials(ca_key: Option<&[u8]>) -> PeerCredentials {
        PeerCredentials {
            ca_certificate: b"ca".to_vec(),
            ca_key: ca_key.map(|key| Zeroizing::new(key.to_vec())),
            crl: b"crl".to_vec(),
            member_certificate: b"member".to_vec(),
            member_key: Zeroizing::new(b"key".to_vec()),
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        for ca_key in [None, Some(&b"ca key"[..])] {
            let credentials = peer_credentials(ca_key);
            assert!(PeerCredentials::from_payload(&credentials.to_payload()) == Ok(credentials));
        }
        let credentials = NodeCredentials {
            node_key: Secret32::random(),
            node_certificate: b"node".to_vec(),
            ca_certificate: b"ca".to_vec(),
        };
        assert!(NodeCredentials::from_payload(&credentials.to_payload()) == Ok(credentials));
        let marker = PartitionMarker { node_id: "metropolis-0".to_owned(), backend: "plain".to_owned() };
        assert_eq!(PartitionMarker::from_payload(&marker.to_payload()), Ok(marker));
        for bits in 0..8_u8 {
            let roles = LocalRoles {
                consensus_member: bits & 1 != 0,
                kubernetes_controller: bits & 2 != 0,
                kubernetes_worker: bits & 4 != 0,
            };
            assert_eq!(LocalRoles::from_payload(&roles.to_payload()), Ok(roles));
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let message = storage::NodeCredentials {
            node_key: vec![1; 31],
            node_certificate: b"node".to_vec(),
            ca_certificate: b"ca".to_vec(),
        };
        let error = NodeCredentials::from_payload(&message.encode_to_vec()).err().unwrap();
        assert_eq!(error.to_string(), "its field node_key is wrong: expected 32 bytes, found 31");
        let mut credentials = peer_credentials(Some(b""));
        let error = PeerCredentials::from_payload(&credentials.to_payload()).err().unwrap();
        assert_eq!(error.to_string(), "its field ca_key is wrong: it is empty");
        credentials.ca_key = None;
        credentials.crl.clear();
        let error = PeerCredentials::from_payload(&credentials.to_payload()).err().unwrap();
        assert_eq!(error.to_string(), "its field crl is wrong: it is empty");
        let error = PartitionMarker::from_payload(b"\xff").err().unwrap();
        assert!(matches!(error, InvalidRecord::NotAMessage(_)), "{error:?}");
        assert!(PartitionMarker::from_payload(b"").is_err());
    }
}
