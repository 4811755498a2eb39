//! The members of the cluster's consensus in one epoch.

use std::net::IpAddr;

use polis_identity::{
    AuthorityCertificate, CertificateAuthority, ClusterId, NodeId, PublicKey, SharePublicKey, StatementKind,
};
use polis_proto::curator_state::{self, MemberStanding};
use prost::Message as _;

use super::lineage::RECOVERIES_LIMIT;
use super::{InvalidMemberList, Lineage, Recovery};
use crate::Epoch;

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
    /// Its part in the change that is under way.
    pub standing: Standing,
}

/// A member's part in the change of members that a list is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// A member before and after the change; of a list without a change, each of them.
    #[default]
    Stays,
    /// Gets its vote by the change.
    Joins,
    /// Loses its vote by the change.
    Leaves,
}

/// The members of the cluster's consensus in one epoch; while a change is under way, those before and after it together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    cluster_id: ClusterId,
    epoch: Epoch,
    /// Ordered by node id, each once.
    members: Vec<MemberEntry>,
    two_confirmed: bool,
    recoveries: Vec<Recovery>,
}

impl MemberList {
    /// A list of these members. Of two entries of a node the first counts.
    #[must_use]
    pub fn new(cluster_id: ClusterId, epoch: Epoch, mut members: Vec<MemberEntry>) -> Self {
        members.sort_by_key(|member| member.node_id);
        members.dedup_by_key(|member| member.node_id);
        Self { cluster_id, epoch, members, two_confirmed: false, recoveries: Vec::new() }
    }

    /// The same, with the word of an operator that two members are to stay two, or without it.
    #[must_use]
    pub fn with_two_confirmed(self, two_confirmed: bool) -> Self {
        Self { two_confirmed, ..self }
    }

    /// The same, of a history that has gone through these recoveries, the oldest first. Of too many the oldest are left out.
    #[must_use]
    pub fn with_recoveries(self, mut recoveries: Vec<Recovery>) -> Self {
        recoveries.drain(..recoveries.len().saturating_sub(RECOVERIES_LIMIT));
        Self { recoveries, ..self }
    }

    /// The recoveries that its history has gone through, the oldest first.
    #[must_use]
    pub fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// How its history stands to that of the list that is `known`.
    #[must_use]
    pub fn lineage(&self, known: &Self) -> Lineage {
        Lineage::of(&self.recoveries, &known.recoveries)
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

    /// Whether an operator has confirmed that two members are to stay two, so that neither keeps a local copy of its key
    /// (`cold-start.md`, "Threshold").
    #[must_use]
    pub const fn is_two_confirmed(&self) -> bool {
        self.two_confirmed
    }

    /// Those with a vote before the change that is under way, ordered by node id. Without a change, all.
    pub fn voters_before(&self) -> impl Iterator<Item = &MemberEntry> {
        self.members.iter().filter(|member| match member.standing {
            Standing::Stays | Standing::Leaves => true,
            Standing::Joins => false,
        })
    }

    /// Those with a vote after the change that is under way, ordered by node id. Without a change, all.
    pub fn voters_after(&self) -> impl Iterator<Item = &MemberEntry> {
        self.members.iter().filter(|member| match member.standing {
            Standing::Stays | Standing::Joins => true,
            Standing::Leaves => false,
        })
    }

    /// The member on this node.
    #[must_use]
    pub fn member(&self, id: &NodeId) -> Option<&MemberEntry> {
        self.members.iter().find(|member| member.node_id == *id)
    }

    /// Whether a node that has known the history up to `known` is to stop, as the cluster was recovered without it: the list is of a
    /// later incarnation and does not name the node (`cold-start.md`, "What is stored where").
    #[must_use]
    pub fn supersedes(&self, known: Epoch, node: &NodeId) -> bool {
        self.epoch.incarnation > known.incarnation && self.member(node).is_none()
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
            standing: MemberStanding::from(member.standing).into(),
        });
        curator_state::MemberList {
            cluster_id: self.cluster_id.to_string(),
            epoch: Some(self.epoch.into()),
            members: members.collect(),
            two_confirmed: self.two_confirmed,
            recoveries: self.recoveries.iter().copied().map(Into::into).collect(),
        }
    }

    fn from_wire(message: curator_state::MemberList, expected: ClusterId) -> Result<Self, InvalidMemberList> {
        if message.cluster_id != expected.to_string() {
            return Err(InvalidMemberList::OtherCluster { found: message.cluster_id, expected });
        }
        let epoch = message.epoch.ok_or(InvalidMemberList::Missing { field: "epoch" })?.into();
        let members = message.members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
        if members.is_sorted_by(|one, next| one.node_id < next.node_id) {
            let recoveries = message.recoveries.into_iter().map(Recovery::from).collect();
            let list = Self { cluster_id: expected, epoch, members, two_confirmed: message.two_confirmed, recoveries };
            Ok(list)
        } else {
            Err(InvalidMemberList::Order)
        }
    }
}

impl From<Standing> for MemberStanding {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Stays => Self::Stays,
            Standing::Joins => Self::Joins,
            Standing::Leaves => Self::Leaves,
        }
    }
}

fn member(message: curator_state::Member) -> Result<MemberEntry, InvalidMemberList> {
    let key = |field, bytes: &[u8]| {
        PublicKey::try_from(bytes).map_err(|source| InvalidMemberList::Key {
            field,
            node: message.node_id.clone(),
            source,
        })
    };
    let public_key = key("public key", &message.public_key)?;
    let node_id = NodeId::of(&public_key);
    if message.node_id != node_id.to_string() {
        return Err(InvalidMemberList::Id { found: message.node_id, expected: node_id });
    }
    let join_key = key("join key", &message.join_key)?;
    let share_key = match &message.share_key[..] {
        [] => None,
        bytes => Some(SharePublicKey::new(
            bytes.try_into().map_err(|_| InvalidMemberList::ShareKey { node: node_id, found: bytes.len() })?,
        )),
    };
    let standing = match MemberStanding::try_from(message.standing) {
        Ok(MemberStanding::Stays) => Standing::Stays,
        Ok(MemberStanding::Joins) => Standing::Joins,
        Ok(MemberStanding::Leaves) => Standing::Leaves,
        Err(_) => return Err(InvalidMemberList::Standing { node: node_id, found: message.standing }),
    };
    let addresses = message
        .addresses
        .into_iter()
        .map(|address| address.parse().map_err(|_| InvalidMemberList::Address { node: node_id, found: address }));
    let addresses = addresses.collect::<Result<_, _>>()?;
    Ok(MemberEntry { node_id, public_key, join_key, share_key, addresses, standing })
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
    ) -> Result<Self, InvalidMemberList> {
        let cluster = authority.cluster_id();
        authority
            .public_key()
            .verify_statement(KIND, &wire.list, &wire.signature)
            .map_err(|source| InvalidMemberList::Signature { cluster, source })?;
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
