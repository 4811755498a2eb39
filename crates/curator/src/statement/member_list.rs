//! The members of the cluster's consensus in one epoch.

use std::net::IpAddr;

use polis_identity::{
    AuthorityCertificate, CertificateAuthority, ClusterId, NodeId, PublicKey, SharePublicKey, StatementKind,
};
use polis_proto::curator_state;
use prost::Message as _;

use super::{Epoch, InvalidStatement, check_cluster};
use crate::NodeRecord;

/// What a signed member list is signed as (`polis/curator/v1/state.proto`).
const KIND: StatementKind = StatementKind::new("polis member list v1");

/// One holder in a member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Its node, which follows from its key.
    pub node_id: NodeId,
    /// Key of the node.
    pub public_key: PublicKey,
    /// Key with which the node joins and unlocks.
    pub join_key: PublicKey,
    /// Key to which shares are encrypted; absent while the node has not reported it.
    pub share_key: Option<SharePublicKey>,
    /// Where it was last seen.
    pub addresses: Vec<IpAddr>,
}

impl MemberEntry {
    /// The entry of the node with this record and this enrolment.
    #[must_use]
    pub fn of(record: &NodeRecord, enrolment: &curator_state::NodeEnrolment) -> Self {
        Self {
            node_id: record.id,
            public_key: record.public_key,
            join_key: record.join_key,
            // The curator takes share keys of the right length only, and another is of no use.
            share_key: <[u8; 32]>::try_from(&enrolment.share_key[..]).ok().map(SharePublicKey::new),
            addresses: record.address().into_iter().collect(),
        }
    }
}

/// The members of the cluster's consensus in one epoch; while a change is under way, those before and after it together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    cluster_id: ClusterId,
    epoch: Epoch,
    /// Ordered by node id, each once.
    members: Vec<MemberEntry>,
}

impl MemberList {
    /// A list of these members. Of two entries of a node the first counts.
    #[must_use]
    pub fn new(cluster_id: ClusterId, epoch: Epoch, mut members: Vec<MemberEntry>) -> Self {
        members.sort_by_key(|member| member.node_id);
        members.dedup_by_key(|member| member.node_id);
        Self { cluster_id, epoch, members }
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster_id(&self) -> &ClusterId {
        &self.cluster_id
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The members, ordered by node id.
    #[must_use]
    pub fn members(&self) -> &[MemberEntry] {
        &self.members
    }

    /// The member on this node.
    #[must_use]
    pub fn member(&self, id: &NodeId) -> Option<&MemberEntry> {
        self.members.iter().find(|member| member.node_id == *id)
    }

    /// Signs the list.
    ///
    /// # Panics
    ///
    /// When the authority is that of another cluster.
    #[must_use]
    pub fn sign(self, authority: &CertificateAuthority) -> SignedMemberList {
        assert_eq!(self.cluster_id, authority.certificate().cluster_id(), "a cluster signs what is its own");
        let list = self.to_wire().encode_to_vec();
        let signature = authority.key().sign_statement(KIND, &list).to_vec();
        SignedMemberList { list: self, wire: curator_state::SignedMemberList { list, signature } }
    }

    pub(super) fn to_wire(&self) -> curator_state::MemberList {
        let members = self.members.iter().map(|member| curator_state::Member {
            node_id: member.node_id.to_string(),
            public_key: member.public_key.as_bytes().to_vec(),
            join_key: member.join_key.as_bytes().to_vec(),
            share_key: member.share_key.map(|key| key.as_bytes().to_vec()).unwrap_or_default(),
            addresses: member.addresses.iter().map(IpAddr::to_string).collect(),
        });
        curator_state::MemberList {
            cluster_id: self.cluster_id.to_string(),
            epoch: Some(self.epoch.into()),
            members: members.collect(),
        }
    }

    fn from_wire(message: curator_state::MemberList, expected: ClusterId) -> Result<Self, InvalidStatement> {
        let cluster_id = check_cluster(message.cluster_id, expected)?;
        let epoch = message.epoch.ok_or(InvalidStatement::Missing { field: "epoch" })?.into();
        let members = message.members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
        if members.is_sorted_by(|one, next| one.node_id < next.node_id) {
            Ok(Self { cluster_id, epoch, members })
        } else {
            Err(InvalidStatement::Order)
        }
    }
}

fn member(message: curator_state::Member) -> Result<MemberEntry, InvalidStatement> {
    let key = |field, bytes: &[u8]| {
        PublicKey::try_from(bytes).map_err(|source| InvalidStatement::Key {
            field,
            node: message.node_id.clone(),
            source,
        })
    };
    let public_key = key("public key", &message.public_key)?;
    let node_id = NodeId::of(&public_key);
    if message.node_id != node_id.to_string() {
        return Err(InvalidStatement::Id { found: message.node_id, expected: node_id });
    }
    let join_key = key("join key", &message.join_key)?;
    let share_key = match &message.share_key[..] {
        [] => None,
        bytes => Some(SharePublicKey::new(
            bytes.try_into().map_err(|_| InvalidStatement::ShareKey { node: node_id, found: bytes.len() })?,
        )),
    };
    let addresses = message
        .addresses
        .into_iter()
        .map(|address| address.parse().map_err(|_| InvalidStatement::Address { node: node_id, found: address }));
    Ok(MemberEntry { node_id, public_key, join_key, share_key, addresses: addresses.collect::<Result<_, _>>()? })
}

/// A member list that the cluster's authority has signed.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedMemberList {
    list: MemberList,
    wire: curator_state::SignedMemberList,
}

impl SignedMemberList {
    /// Checks a signed list against the authority of the cluster.
    ///
    /// # Errors
    ///
    /// When it is not signed by the authority, or what is signed is no list of its cluster.
    pub fn verify(
        wire: curator_state::SignedMemberList,
        authority: &AuthorityCertificate,
    ) -> Result<Self, InvalidStatement> {
        let cluster = authority.cluster_id();
        authority
            .public_key()
            .verify_statement(KIND, &wire.list, &wire.signature)
            .map_err(|source| InvalidStatement::Signature { cluster, source })?;
        let list = MemberList::from_wire(curator_state::MemberList::decode(&wire.list[..])?, cluster)?;
        Ok(Self { list, wire })
    }

    /// What it says.
    #[must_use]
    pub const fn list(&self) -> &MemberList {
        &self.list
    }

    /// The message, as it was signed.
    #[must_use]
    pub const fn wire(&self) -> &curator_state::SignedMemberList {
        &self.wire
    }

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.wire.encode_to_vec()
    }
}
