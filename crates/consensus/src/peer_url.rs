//! Peer URLs: an identity address and a fixed port, so that they never change, whatever network the node is on.

use std::net::{Ipv6Addr, SocketAddrV6};

/// Port on which members speak with each other (metropolis.md J.1).
pub const PEER_PORT: u16 = 7834;

/// The peer URL of the member with this identity address (`PeerAddress` of its node's key): what the role of a consensus
/// member lists.
#[must_use]
pub fn peer_url(identity_address: Ipv6Addr) -> String {
    format(identity_address)
}

/// The identity address in a peer URL; `None` for a URL that Polis has not made.
#[must_use]
pub fn parse_peer_url(url: &str) -> Option<Ipv6Addr> {
    parse(url)
}

/// The peer URL of the member with this identity address, `https://[ULA]:7834`.
pub(crate) fn format(identity_address: Ipv6Addr) -> String {
    format!("https://[{identity_address}]:{PEER_PORT}")
}

/// The identity address in a peer URL as etcd lists it; `None` for a URL that Polis has not made.
pub(crate) fn parse(url: &str) -> Option<Ipv6Addr> {
    let address: SocketAddrV6 = url.strip_prefix("https://")?.parse().ok()?;
    // Identity addresses are unique local ones (RFC 4193), without a zone.
    let ours = address.port() == PEER_PORT && address.ip().octets()[0] == 0xfd && address.scope_id() == 0;
    ours.then_some(*address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_url() {
        let address: Ipv6Addr = "fd10:1112:1314:1516:1718:191a:1b1c:1d1e".parse().unwrap();
        assert_eq!(format(address), "https://[fd10:1112:1314:1516:1718:191a:1b1c:1d1e]:7834");
        assert_eq!(parse(&format(address)), Some(address));
    }

    #[test]
    fn other_urls_are_not_ours() {
        for url in [
            "http://[fd00::1]:7834",
            "https://[fd00::1]:7835",
            "https://[2001:db8::1]:7834",
            "https://[fe80::1%2]:7834",
            "https://10.0.0.1:7834",
            "https://node:7834",
            "https://[fd00::1]:7834/",
            "",
        ] {
            assert_eq!(parse(url), None, "{url}");
        }
    }
}
