//! What a node may say about its part of the cluster's network (metropolis.md, G.4, UpdateNodeClusterNetworking).

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::{IpNet, Ipv4Net};
use polis_proto::common::NodeClusterNetworking;

use super::text::shown;

/// Addresses from which nodes give to their pods (metropolis.md, G.4): 10.192.0.0/11.
const POD_NETWORK: Ipv4Net = Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 192, 0, 0), 11);

/// Most prefixes of a node: one for its pods and one for itself are usual, and the record of a node must stay small.
const MAX_PREFIXES: usize = 64;

/// Length of a WireGuard key, in bytes.
const WIREGUARD_KEY_LENGTH: usize = 32;

/// What is wrong with a node's networking.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClusternetError {
    /// Not the text form of a WireGuard key.
    #[error("wireguard_pubkey is not a WireGuard public key: 32 bytes, written in base64 as 44 characters")]
    Key,
    /// Too many prefixes.
    #[error("there are {0} prefixes, and a node has at most {MAX_PREFIXES}")]
    TooMany(usize),
    /// Not a prefix.
    #[error("the prefix {0} is not written as ADDRESS/LENGTH")]
    Malformed(String),
    /// Bits are set after the length of the prefix.
    #[error("the prefix {found} has bits set after its length; {canonical} is meant?")]
    NotCanonical { found: String, canonical: IpNet },
    /// Neither inside the network of pods nor the node's own address.
    #[error("the prefix {found} is neither inside {POD_NETWORK} nor the node's own address {own}")]
    Outside { found: IpNet, own: IpNet },
}

/// Checks what a node says, whose own address is `address`.
///
/// # Errors
///
/// The first thing that is wrong.
pub(super) fn check(networking: &NodeClusterNetworking, address: IpAddr) -> Result<(), ClusternetError> {
    // The decoder takes only the one canonical form, so equal keys are equal texts.
    match STANDARD.decode(&networking.wireguard_pubkey) {
        Ok(key) if key.len() == WIREGUARD_KEY_LENGTH => {}
        Ok(_) | Err(_) => return Err(ClusternetError::Key),
    }
    if networking.prefixes.len() > MAX_PREFIXES {
        return Err(ClusternetError::TooMany(networking.prefixes.len()));
    }
    let own = IpNet::from(address);
    for prefix in &networking.prefixes {
        let found: IpNet = prefix.cidr.parse().map_err(|_| ClusternetError::Malformed(shown(&prefix.cidr)))?;
        if found.trunc() != found {
            return Err(ClusternetError::NotCanonical { found: shown(&prefix.cidr), canonical: found.trunc() });
        }
        if found != own && !IpNet::V4(POD_NETWORK).contains(&found) {
            return Err(ClusternetError::Outside { found, own });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use polis_proto::common::node_cluster_networking::Prefix;

    use super::*;

    const KEY: &str = "GaYHwjI+8XLxYg8fGYVWdV0mIRHBUmF8RV8XsQKEwU8=";

    #[test]
    fn what_a_node_may_say() {
        let own: IpAddr = "203.0.113.42".parse().unwrap();
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let outside = |found| Err(ClusternetError::Outside { found: net(found), own: net("203.0.113.42/32") });
        for (key, prefixes, expect) in [
            (KEY, &["10.192.0.24/32", "10.200.10.0/24"][..], Ok(())),
            (KEY, &[], Ok(())),
            (KEY, &["203.0.113.42/32"], Ok(())),
            (KEY, &["10.192.0.0/11"], Ok(())),
            (KEY, &["203.0.113.43/32"], outside("203.0.113.43/32")),
            (KEY, &["10.224.0.0/24"], outside("10.224.0.0/24")),
            (KEY, &["10.192.0.0/10"], outside("10.192.0.0/10")),
            (KEY, &["0.0.0.0/0"], outside("0.0.0.0/0")),
            (KEY, &["::/0"], outside("::/0")),
            (
                KEY,
                &["10.200.10.1/24"],
                Err(ClusternetError::NotCanonical { found: "10.200.10.1/24".into(), canonical: net("10.200.10.0/24") }),
            ),
            (KEY, &["10.200.10.0"], Err(ClusternetError::Malformed("10.200.10.0".into()))),
            (KEY, &[""], Err(ClusternetError::Malformed(String::new()))),
            ("", &[], Err(ClusternetError::Key)),
            ("beep boop I'm a key", &[], Err(ClusternetError::Key)),
            ("GaYHwjI+8XLxYg8fGYVWdV0mIRHBUmF8RV8XsQKEw", &[], Err(ClusternetError::Key)),
            ("GaYHwjI+8XLxYg8fGYVWdV0mIRHBUmF8RV8XsQKEwU9=", &[], Err(ClusternetError::Key)),
        ] {
            let prefixes = prefixes.iter().map(|cidr| Prefix { cidr: (*cidr).into() }).collect();
            let networking = NodeClusterNetworking { wireguard_pubkey: key.into(), prefixes };
            assert_eq!(check(&networking, own), expect, "{networking:?}");
        }
    }

    #[test]
    fn the_number_of_prefixes_is_bounded() {
        let prefixes = vec![Prefix { cidr: "10.192.0.0/32".into() }; MAX_PREFIXES + 1];
        let networking = NodeClusterNetworking { wireguard_pubkey: KEY.into(), prefixes };
        assert_eq!(check(&networking, "::1".parse().unwrap()), Err(ClusternetError::TooMany(MAX_PREFIXES + 1)));
    }

    #[test]
    fn an_ipv6_address_is_one_of_128_bits() {
        let prefixes = vec![Prefix { cidr: "2001:db8::7/128".into() }];
        let networking = NodeClusterNetworking { wireguard_pubkey: KEY.into(), prefixes };
        assert_eq!(check(&networking, "2001:db8::7".parse().unwrap()), Ok(()));
    }
}
