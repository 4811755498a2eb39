//! The address under which etcd members know a node.

use std::fmt;
use std::net::Ipv6Addr;

use sha2::{Digest as _, Sha256};

use crate::PublicKey;

/// What is hashed before the key, so that no other use of SHA-256 over a key gives the same bytes.
const LABEL: &[u8] = b"polis peer address v1\0";

/// A unique local IPv6 address (fd00::/8) that stands for a node's identity.
///
/// No interface ever has it. It is the host of the node's etcd peer URL, and the dialer inside every node maps it to
/// the address that the node has at the time; so a node can move without a change of etcd's membership (design.md,
/// "addresses that are identities"). The 120 bits after `fd` are the start of SHA-256 over a label and the public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress(Ipv6Addr);

impl PeerAddress {
    /// The address of the node that has this key.
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        let digest = Sha256::new().chain_update(LABEL).chain_update(key.as_bytes()).finalize();
        let mut octets = [0xfd; 16];
        octets[1..].copy_from_slice(&digest[..15]);
        Self(Ipv6Addr::from(octets))
    }

    /// The address.
    #[must_use]
    pub const fn ip(&self) -> Ipv6Addr {
        self.0
    }
}

impl From<&PublicKey> for PeerAddress {
    fn from(key: &PublicKey) -> Self {
        Self::of(key)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    #[test]
    fn the_address_of_a_key_never_changes() {
        // fd, then the first 15 bytes of SHA-256 over the label and the key, computed with Python's hashlib.
        let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a".parse().unwrap();
        assert_eq!(PeerAddress::of(&key).to_string(), "fdb4:e0f4:987e:344a:e37a:c008:5e94:b08d");
    }

    #[test]
    fn every_key_has_an_address_of_its_own_in_the_local_range() {
        let first = PeerAddress::of(&NodeKey::generate().public());
        let second = PeerAddress::of(&NodeKey::generate().public());
        assert_ne!(first, second);
        assert!(first.ip().is_unique_local() && second.ip().is_unique_local());
        assert_eq!((first.ip().octets()[0], second.ip().octets()[0]), (0xfd, 0xfd));
    }
}
