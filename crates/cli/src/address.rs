//! Addresses that a node can serve on.

use std::net::IpAddr;

/// Takes an address that may be the own one of a node.
///
/// # Errors
///
/// Why the text is no such address.
pub(crate) fn parse(text: &str) -> Result<IpAddr, String> {
    let address =
        text.parse().map_err(|_| "not an IP address; write for example 192.0.2.10 or 2001:db8::10".to_owned())?;
    match fault(address) {
        Some(fault) => Err(format!("it cannot be the address of a node: {fault}")),
        None => Ok(address),
    }
}

/// Why a node cannot serve on `address`, if that can be told without trying. The kernel would let it listen on all of these,
/// and no other node would reach it there.
fn fault(address: IpAddr) -> Option<&'static str> {
    let (is_broadcast, is_mapped) = match address {
        IpAddr::V4(address) => (address.is_broadcast(), false),
        IpAddr::V6(address) => (false, address.to_ipv4_mapped().is_some()),
    };
    if address.is_unspecified() {
        Some("it stands for all addresses; a node needs one of its own")
    } else if address.is_multicast() {
        Some("it is a multicast address")
    } else if is_broadcast {
        Some("it is the broadcast address")
    } else if is_mapped {
        Some("it is an IPv4 address in the form of an IPv6 one; write it as an IPv4 address")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_of_one_machine_is_taken() {
        for (text, part) in [
            ("0.0.0.0", "stands for all"),
            ("::", "stands for all"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("::ffff:192.0.2.1", "as an IPv4 address"),
            ("192.0.2.1:7834", "not an IP address"),
            ("fe80::1%lo", "not an IP address"),
            ("", "not an IP address"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        for text in ["127.0.0.2", "192.0.2.1", "::1", "2001:db8::10"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }
}
