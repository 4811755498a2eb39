//! What a node keeps of its cluster, so that it finds the others again also when nobody answers for the cluster.

use polis_proto::storage;
use prost::Message;
use zeroize::Zeroizing;

use crate::envelope::Format;
use crate::record::{InvalidRecord, Record};

/// Longest payload of a directory: some 150 bytes for each of several thousand nodes.
const DIRECTORY_LIMIT: usize = 1024 * 1024;
/// Longest payload of what concerns consensus members, of which there are nine at most, or of a list of revocations, which grows
/// by some 40 bytes with each removed node.
const LIST_LIMIT: usize = 1024 * 1024;
/// Longest payload of the small records: a name or a number.
const SMALL_LIMIT: usize = 4096;

/// Where the nodes of the cluster were last known to be, the node itself among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDirectory {
    /// Ordered by node id, each once.
    pub nodes: Vec<DirectoryNode>,
}

/// One node of a [`ClusterDirectory`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryNode {
    /// Its id.
    pub node_id: String,
    /// Its Ed25519 public key; absent while it is not known.
    pub public_key: Option<[u8; 32]>,
    /// IP addresses at which it was last seen, the newest first.
    pub addresses: Vec<String>,
    /// Whether it runs a member of the cluster's consensus.
    pub consensus_member: bool,
}

impl Record for ClusterDirectory {
    const FORMAT: Format = Format { magic: *b"POLISDIR", version: 1, payload_limit: DIRECTORY_LIMIT };
    const LOAD_SITE: &'static str = "directory/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let node = |node: &DirectoryNode| storage::cluster_directory::Node {
            node_id: node.node_id.clone(),
            public_key: node.public_key.map(Vec::from).unwrap_or_default(),
            addresses: node.addresses.clone(),
            consensus_member: node.consensus_member,
        };
        let message = storage::ClusterDirectory { nodes: self.nodes.iter().map(node).collect() };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::ClusterDirectory { nodes } =
            storage::ClusterDirectory::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        let node = |node: storage::cluster_directory::Node| {
            InvalidRecord::not_empty("nodes.node_id", node.node_id.as_bytes())?;
            Ok(DirectoryNode {
                node_id: node.node_id,
                public_key: match &*node.public_key {
                    [] => None,
                    key => Some(<[u8; 32]>::try_from(key).map_err(|_| {
                        InvalidRecord::field("nodes.public_key", "it is neither empty nor of 32 bytes")
                    })?),
                },
                addresses: node.addresses,
                consensus_member: node.consensus_member,
            })
        };
        let nodes: Vec<DirectoryNode> = nodes.into_iter().map(node).collect::<Result<_, InvalidRecord>>()?;
        if !nodes.is_sorted_by(|first, second| first.node_id < second.node_id) {
            return Err(InvalidRecord::field("nodes", "they are not in the order of their ids, each once"));
        }
        Ok(Self { nodes })
    }
}

/// Where an operator says that nodes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorPeers {
    /// Pairs of node id and IP address, in order, each once.
    pub peers: Vec<OperatorPeer>,
}

/// One entry of [`OperatorPeers`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperatorPeer {
    /// Id of the node.
    pub node_id: String,
    /// IP address.
    pub address: String,
}

impl Record for OperatorPeers {
    const FORMAT: Format = Format { magic: *b"POLISPRS", version: 1, payload_limit: LIST_LIMIT };
    const LOAD_SITE: &'static str = "peers/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let peer = |peer: &OperatorPeer| storage::operator_peers::Peer {
            node_id: peer.node_id.clone(),
            address: peer.address.clone(),
        };
        let message = storage::OperatorPeers { peers: self.peers.iter().map(peer).collect() };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::OperatorPeers { peers } =
            storage::OperatorPeers::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        let peer = |peer: storage::operator_peers::Peer| {
            InvalidRecord::not_empty("peers.node_id", peer.node_id.as_bytes())?;
            InvalidRecord::not_empty("peers.address", peer.address.as_bytes())?;
            Ok(OperatorPeer { node_id: peer.node_id, address: peer.address })
        };
        let peers: Vec<OperatorPeer> = peers.into_iter().map(peer).collect::<Result<_, InvalidRecord>>()?;
        if !peers.is_sorted_by(|first, second| first < second) {
            return Err(InvalidRecord::field("peers", "they are not in order, each once"));
        }
        Ok(Self { peers })
    }
}

/// The newest list of consensus members that the node has seen, as the cluster's CA has signed it. What is in it is the business
/// of those who can check the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedMembers {
    /// Serialized `polis.curator.v1.SignedMemberList`.
    pub signed_list: Vec<u8>,
}

impl Record for SignedMembers {
    const FORMAT: Format = Format { magic: *b"POLISMEM", version: 1, payload_limit: LIST_LIMIT };
    const LOAD_SITE: &'static str = "members/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(storage::SignedMembers { signed_list: self.signed_list.clone() }.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::SignedMembers { signed_list } =
            storage::SignedMembers::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("signed_list", &signed_list)?;
        Ok(Self { signed_list })
    }
}

/// How the node's cluster unlock key comes back from the other members. What is in it is the business of those who can check the
/// MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlockShares {
    /// Serialized `polis.storage.v1.UnlockFile.Content`.
    pub content: Vec<u8>,
    /// HMAC-SHA-256 of it.
    pub mac: [u8; 32],
}

impl Record for UnlockShares {
    const FORMAT: Format = Format { magic: *b"POLISULK", version: 1, payload_limit: LIST_LIMIT };
    const LOAD_SITE: &'static str = "unlock/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let message = storage::UnlockFile { content: self.content.clone(), mac: self.mac.to_vec() };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::UnlockFile { content, mac } =
            storage::UnlockFile::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("content", &content)?;
        let mac = mac.try_into().map_err(|_| InvalidRecord::field("mac", "it has not 32 bytes"))?;
        Ok(Self { content, mac })
    }
}

/// What the cluster's CA has revoked, as far as the node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// Revocation list, DER.
    pub revocation_list: Vec<u8>,
}

impl Record for Revocations {
    const FORMAT: Format = Format { magic: *b"POLISREV", version: 1, payload_limit: LIST_LIMIT };
    const LOAD_SITE: &'static str = "node/revocations/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(storage::Revocations { revocation_list: self.revocation_list.clone() }.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::Revocations { revocation_list } =
            storage::Revocations::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("revocation_list", &revocation_list)?;
        Ok(Self { revocation_list })
    }
}

/// The node has been given a place in the consensus and its member has not worked yet: an empty data directory is then what is
/// to be expected, and not a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberJoin {
    /// Id of the node whose member it is.
    pub node_id: String,
}

impl Record for MemberJoin {
    const FORMAT: Format = Format { magic: *b"POLISJNG", version: 1, payload_limit: SMALL_LIMIT };
    const LOAD_SITE: &'static str = "etcd/joining/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(storage::MemberJoin { node_id: self.node_id.clone() }.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::MemberJoin { node_id } =
            storage::MemberJoin::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("node_id", node_id.as_bytes())?;
        Ok(Self { node_id })
    }
}

/// Numbers of announcements that the node has taken for itself, so that it never announces twice under the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementCounter {
    /// No announcement with this number or a higher one was sent.
    pub reserved: u64,
}

impl Record for AnnouncementCounter {
    const FORMAT: Format = Format { magic: *b"POLISANN", version: 1, payload_limit: SMALL_LIMIT };
    const LOAD_SITE: &'static str = "announced/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(storage::AnnouncementCounter { reserved: self.reserved }.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::AnnouncementCounter { reserved } =
            storage::AnnouncementCounter::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        Ok(Self { reserved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn comes_back<T: Record + PartialEq + std::fmt::Debug>(record: &T) {
        assert_eq!(T::from_payload(&record.to_payload()).as_ref(), Ok(record));
    }

    #[track_caller]
    fn is_refused<T: Record>(record: &T, problem: &str) {
        let error = T::from_payload(&record.to_payload()).err().expect("it is not valid");
        assert_eq!(error.to_string(), problem);
    }

    fn node(node_id: &str) -> DirectoryNode {
        DirectoryNode {
            node_id: node_id.to_owned(),
            public_key: Some([7; 32]),
            addresses: vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()],
            consensus_member: true,
        }
    }

    fn peer(node_id: &str, address: &str) -> OperatorPeer {
        OperatorPeer { node_id: node_id.to_owned(), address: address.to_owned() }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let unknown = DirectoryNode { public_key: None, addresses: Vec::new(), consensus_member: false, ..node("b") };
        comes_back(&ClusterDirectory { nodes: vec![node("a"), unknown] });
        comes_back(&ClusterDirectory::default());
        comes_back(&OperatorPeers { peers: vec![peer("a", "10.0.0.1"), peer("a", "10.0.0.2")] });
        comes_back(&OperatorPeers::default());
        comes_back(&SignedMembers { signed_list: b"list".to_vec() });
        comes_back(&UnlockShares { content: b"content".to_vec(), mac: [7; 32] });
        comes_back(&Revocations { revocation_list: b"crl".to_vec() });
        comes_back(&MemberJoin { node_id: "a".to_owned() });
        comes_back(&AnnouncementCounter { reserved: 1000 });
        comes_back(&AnnouncementCounter::default());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field() {
        let order = "its field nodes is wrong: they are not in the order of their ids, each once";
        for ids in [["b", "a"], ["a", "a"]] {
            is_refused(&ClusterDirectory { nodes: ids.map(node).to_vec() }, order);
        }
        is_refused(&ClusterDirectory { nodes: vec![node("")] }, "its field nodes.node_id is wrong: it is empty");
        is_refused(
            &OperatorPeers { peers: vec![peer("a", "10.0.0.2"), peer("a", "10.0.0.1")] },
            "its field peers is wrong: they are not in order, each once",
        );
        is_refused(&OperatorPeers { peers: vec![peer("a", "")] }, "its field peers.address is wrong: it is empty");
        is_refused(&SignedMembers { signed_list: Vec::new() }, "its field signed_list is wrong: it is empty");
        let shares = UnlockShares { content: Vec::new(), mac: [7; 32] };
        is_refused(&shares, "its field content is wrong: it is empty");
        let message = storage::UnlockFile { content: b"content".to_vec(), mac: vec![7; 31] };
        let error = UnlockShares::from_payload(&message.encode_to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "its field mac is wrong: it has not 32 bytes");
        is_refused(&Revocations { revocation_list: Vec::new() }, "its field revocation_list is wrong: it is empty");
        is_refused(&MemberJoin { node_id: String::new() }, "its field node_id is wrong: it is empty");
        let message = storage::ClusterDirectory {
            nodes: vec![storage::cluster_directory::Node {
                node_id: "a".to_owned(),
                public_key: vec![1; 31],
                ..Default::default()
            }],
        };
        let error = ClusterDirectory::from_payload(&message.encode_to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "its field nodes.public_key is wrong: it is neither empty nor of 32 bytes");
    }
}
