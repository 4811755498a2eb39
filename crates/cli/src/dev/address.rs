//! Addresses of the nodes of a cluster on this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of node 1 when none is given: a loopback address that nothing else uses by habit, as 127.0.0.1 is.
pub(super) const DEFAULT_BASE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Address of node `number`, counted from 1: `number - 1` above `base`. `None` past the end of the address space.
pub(super) fn of_node(base: IpAddr, number: u32) -> Option<IpAddr> {
    let above = number.checked_sub(1)?;
    match base {
        IpAddr::V4(base) => base.to_bits().checked_add(above).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(base) => base.to_bits().checked_add(above.into()).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_count_upwards() {
        let check = |base: &str, number, expect: Option<&str>| {
            assert_eq!(of_node(base.parse().unwrap(), number), expect.map(|text| text.parse().unwrap()));
        };
        check("127.0.0.2", 1, Some("127.0.0.2"));
        check("127.0.0.254", 3, Some("127.0.1.0"));
        check("::1", 2, Some("::2"));
        check("255.255.255.255", 2, None);
        check("127.0.0.2", 0, None);
    }
}
