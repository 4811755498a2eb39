//! An announcement: one member of the consensus says to everybody on its link who it is and where. Pure.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic, `POLISHI` and a zero byte |
//! | 4 | version of the format, big-endian |
//! | 16 | id of the cluster |
//! | 32 | Ed25519 public key of the node |
//! | 8 | number of the announcement, big-endian; it rises with each, for as long as the node lives |
//! | 1, 16 | 4 or 6, and the IP address (of IPv4 the first four bytes, zeros behind) |
//! | 64 | signature of the node's join key over all before it, as a statement of a kind of its own |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use polis_identity::{ClusterId, JoinKey, NodeId, PublicKey, StatementKind, WrongSignatureError};
use polis_unlock::MemberList;

/// What an announcement is signed as.
const KIND: StatementKind = StatementKind::new("polis announcement v1");

const MAGIC: [u8; 8] = *b"POLISHI\0";
const VERSION: u32 = 1;
const SIGNATURE_LENGTH: usize = 64;
const SIGNED_LENGTH: usize = 8 + 4 + 16 + 32 + 8 + 17;
const LENGTH: usize = SIGNED_LENGTH + SIGNATURE_LENGTH;

// It is one datagram on every link.
const _: () = assert!(LENGTH <= polis_network::ANNOUNCEMENT_LIMIT);

/// What a member says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) cluster_id: ClusterId,
    pub(crate) public_key: PublicKey,
    pub(crate) counter: u64,
    pub(crate) address: IpAddr,
}

/// Why an announcement is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unbelievable {
    #[error("it is no announcement")]
    Foreign,
    #[error("it has version {found} of the format, and this build knows version {VERSION}")]
    Version { found: u32 },
    #[error("it is about the cluster {found}")]
    OtherCluster { found: ClusterId },
    #[error("it is about {node}, which is in no member list that this node has seen")]
    NotAMember { node: NodeId },
    #[error("it is about {node}, whose join key has not signed it")]
    Signature {
        node: NodeId,
        #[source]
        source: WrongSignatureError,
    },
    #[error("it is an old one of {node}: number {found}, after {seen}")]
    Replayed { node: NodeId, found: u64, seen: u64 },
    #[error("the address {address} is none at which a node can be")]
    Address { address: IpAddr },
}

impl Announcement {
    /// The datagram, signed by the node's join key.
    pub(crate) fn sign(&self, join_key: &JoinKey) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(LENGTH);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&VERSION.to_be_bytes());
        datagram.extend_from_slice(self.cluster_id.as_bytes());
        datagram.extend_from_slice(self.public_key.as_bytes());
        datagram.extend_from_slice(&self.counter.to_be_bytes());
        match self.address {
            IpAddr::V4(address) => {
                datagram.push(4);
                datagram.extend_from_slice(&address.octets());
                datagram.extend_from_slice(&[0; 12]);
            }
            IpAddr::V6(address) => {
                datagram.push(6);
                datagram.extend_from_slice(&address.octets());
            }
        }
        let signature = join_key.sign_statement(KIND, &datagram);
        datagram.extend_from_slice(&signature);
        datagram
    }

    /// What the datagram says, which nobody has checked yet.
    fn read(datagram: &[u8]) -> Result<Self, Unbelievable> {
        let mut rest = datagram;
        if take::<8>(&mut rest)? != MAGIC {
            return Err(Unbelievable::Foreign);
        }
        let found = u32::from_be_bytes(take(&mut rest)?);
        if found != VERSION {
            return Err(Unbelievable::Version { found });
        }
        let cluster_id = ClusterId::from_bytes(take(&mut rest)?);
        let public_key = PublicKey::new(take(&mut rest)?).map_err(|_| Unbelievable::Foreign)?;
        let counter = u64::from_be_bytes(take(&mut rest)?);
        let ([family], bytes) = (take::<1>(&mut rest)?, take::<16>(&mut rest)?);
        let address = match (family, bytes) {
            (4, [a, b, c, d, padding @ ..]) if padding == [0; 12] => Ipv4Addr::new(a, b, c, d).into(),
            (6, bytes) => Ipv6Addr::from(bytes).into(),
            _ => return Err(Unbelievable::Foreign),
        };
        if rest.len() != SIGNATURE_LENGTH {
            return Err(Unbelievable::Foreign);
        }
        Ok(Self { cluster_id, public_key, counter, address })
    }
}

/// Decides which announcements are believed.
///
/// What was heard is not kept over a start: whoever recorded an announcement may then repeat it once, and it costs a
/// connection to an address where the node no longer is. Who is at an address is decided by keys, there as everywhere.
#[derive(Debug)]
pub(crate) struct Judge {
    cluster_id: ClusterId,
    own: NodeId,
    /// Join keys of the members.
    members: BTreeMap<NodeId, PublicKey>,
    /// The last number of each member.
    seen: BTreeMap<NodeId, u64>,
}

impl Judge {
    pub(crate) fn new(cluster_id: ClusterId, own: NodeId) -> Self {
        Self { cluster_id, own, members: BTreeMap::new(), seen: BTreeMap::new() }
    }

    /// From now on the members of this list are believed, and nobody else.
    pub(crate) fn set_members(&mut self, list: &MemberList) {
        self.members = list.members().iter().map(|member| (member.node_id, member.join_key)).collect();
        self.seen.retain(|node_id, _| self.members.contains_key(node_id));
    }

    /// Judges a datagram; none if it is this node's own.
    pub(crate) fn hear(&mut self, datagram: &[u8]) -> Result<Option<Announcement>, Unbelievable> {
        let announcement = Announcement::read(datagram)?;
        let Announcement { cluster_id, public_key, counter, address } = announcement;
        if cluster_id != self.cluster_id {
            return Err(Unbelievable::OtherCluster { found: cluster_id });
        }
        let node = NodeId::of(&public_key);
        if node == self.own {
            return Ok(None);
        }
        // What costs nothing comes before the signature.
        let join_key = self.members.get(&node).ok_or(Unbelievable::NotAMember { node })?;
        if let Some(&seen) = self.seen.get(&node).filter(|seen| **seen >= counter) {
            return Err(Unbelievable::Replayed { node, found: counter, seen });
        }
        let (signed, signature) = datagram.split_at(SIGNED_LENGTH);
        join_key
            .verify_statement(KIND, signed, signature)
            .map_err(|source| Unbelievable::Signature { node, source })?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(Unbelievable::Address { address });
        }
        self.seen.insert(node, counter);
        Ok(Some(announcement))
    }
}

fn take<const LENGTH: usize>(rest: &mut &[u8]) -> Result<[u8; LENGTH], Unbelievable> {
    let (taken, behind) = rest.split_first_chunk::<LENGTH>().ok_or(Unbelievable::Foreign)?;
    *rest = behind;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeKey};
    use polis_unlock::{Epoch, MemberEntry, Standing};

    use super::*;

    struct Member {
        key: NodeKey,
        join_key: JoinKey,
    }

    impl Member {
        fn new() -> Self {
            Self { key: NodeKey::generate(), join_key: JoinKey::generate() }
        }

        fn entry(&self) -> MemberEntry {
            let public_key = self.key.public();
            MemberEntry {
                node_id: NodeId::of(&public_key),
                public_key,
                join_key: self.join_key.public(),
                share_key: None,
                addresses: Vec::new(),
                standing: Standing::Stays,
            }
        }
    }

    struct Scene {
        cluster_id: ClusterId,
        own: Member,
        other: Member,
        judge: Judge,
    }

    fn scene() -> Scene {
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let cluster_id = authority.certificate().cluster_id();
        let (own, other) = (Member::new(), Member::new());
        let mut judge = Judge::new(cluster_id, own.entry().node_id);
        judge.set_members(&MemberList::new(cluster_id, Epoch::FIRST, vec![own.entry(), other.entry()]));
        Scene { cluster_id, own, other, judge }
    }

    impl Scene {
        fn says(&self, counter: u64, address: &str) -> Announcement {
            Announcement {
                cluster_id: self.cluster_id,
                public_key: self.other.key.public(),
                counter,
                address: address.parse().unwrap(),
            }
        }

        fn hear(&mut self, announcement: Announcement) -> Result<Option<Announcement>, Unbelievable> {
            self.judge.hear(&announcement.sign(&self.other.join_key))
        }
    }

    #[test]
    fn a_member_is_believed_once_per_number() {
        let mut scene = scene();
        let node = scene.other.entry().node_id;
        for (counter, address) in [(5, "10.0.0.7"), (6, "fd00::7"), (u64::MAX, "10.0.0.8")] {
            let announcement = scene.says(counter, address);
            assert_eq!(scene.hear(announcement), Ok(Some(announcement)));
            let replayed = Unbelievable::Replayed { node, found: counter, seen: counter };
            assert_eq!(scene.hear(announcement), Err(replayed));
        }
        let old = scene.says(5, "10.0.0.7");
        assert_eq!(scene.hear(old), Err(Unbelievable::Replayed { node, found: 5, seen: u64::MAX }));
    }

    #[test]
    fn nobody_else_is_believed() {
        let mut scene = scene();
        let node = scene.other.entry().node_id;
        let announcement = scene.says(1, "10.0.0.7");

        let stranger = Member::new();
        let of_stranger = Announcement { public_key: stranger.key.public(), ..announcement };
        let expected = Err(Unbelievable::NotAMember { node: stranger.entry().node_id });
        assert_eq!(scene.judge.hear(&of_stranger.sign(&stranger.join_key)), expected);
        // Another's key, and the node's own key for something else than announcements.
        for key in [&stranger.join_key, &scene.own.join_key.clone()] {
            let heard = scene.judge.hear(&announcement.sign(key));
            assert!(matches!(heard, Err(Unbelievable::Signature { node: found, .. }) if found == node), "{heard:?}");
        }
        let other = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME).certificate().cluster_id();
        let of_other = Announcement { cluster_id: other, ..announcement };
        assert_eq!(scene.hear(of_other), Err(Unbelievable::OtherCluster { found: other }));
        for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
            let announcement = scene.says(9, address);
            let expected = Unbelievable::Address { address: address.parse().unwrap() };
            assert_eq!(scene.hear(announcement), Err(expected));
        }
        // Whoever is no longer in the list is a stranger; whoever is refused costs the member no number.
        let announcement = scene.says(1, "10.0.0.7");
        assert_eq!(scene.hear(announcement), Ok(Some(announcement)));
        scene.judge.set_members(&MemberList::new(scene.cluster_id, Epoch::FIRST.next(), vec![scene.own.entry()]));
        let announcement = scene.says(2, "10.0.0.7");
        assert_eq!(scene.hear(announcement), Err(Unbelievable::NotAMember { node }));
    }

    #[test]
    fn its_own_is_nothing_to_learn() {
        let mut scene = scene();
        let announcement = Announcement { public_key: scene.own.key.public(), ..scene.says(1, "10.0.0.7") };
        assert_eq!(scene.judge.hear(&announcement.sign(&scene.own.join_key)), Ok(None));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let mut scene = scene();
        for address in ["10.0.0.7", "fd00::7"] {
            let whole = scene.says(1, address).sign(&scene.other.join_key);
            for position in 0..whole.len() {
                let mut changed = whole.clone();
                changed[position] ^= 1;
                assert!(!matches!(scene.judge.hear(&changed), Ok(Some(_))), "byte {position}");
                assert!(scene.judge.hear(&whole[..position]).is_err(), "cut at {position}");
            }
            let longer = [&whole[..], &[0]].concat();
            assert_eq!(scene.judge.hear(&longer), Err(Unbelievable::Foreign));
        }
        let mut future = scene.says(1, "10.0.0.7").sign(&scene.other.join_key);
        future[11] = 2;
        assert_eq!(scene.judge.hear(&future), Err(Unbelievable::Version { found: 2 }));
    }
}
