//! Chooses the address of this node from the kernel's routes and addresses.

use std::net::IpAddr;

/// One way out of this machine to everywhere: a next hop of a default route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultRoute {
    /// Whether this is a route for IPv6.
    pub(crate) is_ipv6: bool,
    /// The lower, the sooner the kernel takes it.
    pub(crate) metric: u32,
    /// Number of the interface that it leads through.
    pub(crate) interface: u32,
    /// Router; absent on links that need none.
    pub(crate) gateway: Option<IpAddr>,
    /// Source address that the route prescribes.
    pub(crate) preferred_source: Option<IpAddr>,
}

/// One address of one interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress {
    /// Number of the interface.
    pub(crate) interface: u32,
    /// The address.
    pub(crate) address: IpAddr,
    /// Length of the network's prefix, in bits.
    pub(crate) prefix_length: u8,
    /// Valid beyond the link and the machine, as whoever set the address says.
    pub(crate) is_global: bool,
    /// Not in use yet, as another machine on the link may have it, or never, as one does.
    pub(crate) is_tentative: bool,
    /// About to go away: for connections that exist, not for new ones.
    pub(crate) is_deprecated: bool,
    /// A second address in a network (IPv4), or one that is replaced every day (IPv6).
    pub(crate) is_secondary: bool,
}

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAddress {
    /// Nothing leads out of this machine.
    #[error("this machine has no default route")]
    NoDefaultRoute,
    /// Something does, but there is no address to be reached at.
    #[error(
        "none of the interfaces with a default route (by number: {interfaces:?}) has an address that others can reach"
    )]
    NoUsableAddress {
        /// Numbers of the interfaces, ascending.
        interfaces: Vec<u32>,
    },
}

/// The source address of the default route: IPv4 if there is one, then IPv6; the lowest metric wins.
///
/// An address that the route prescribes goes before others of its interface, a primary one before a secondary one,
/// and one in the gateway's network before one in another. Among addresses that are equally good `current` stays,
/// so that a new address of an interface (IPv6 has several) is no reason to move.
pub(crate) fn choose(
    routes: &[DefaultRoute],
    addresses: &[OwnAddress],
    current: Option<IpAddr>,
) -> Result<IpAddr, NoAddress> {
    let candidates = || routes.iter().flat_map(|route| candidates(route, addresses));
    let best = candidates().map(|(rank, _)| rank).min();
    let mut equally_good = candidates().filter(|(rank, _)| Some(*rank) == best).map(|(_, address)| address);
    if let Some(current) = current
        && equally_good.clone().any(|address| address == current)
    {
        return Ok(current);
    }
    equally_good.next().ok_or_else(|| {
        if routes.is_empty() {
            return NoAddress::NoDefaultRoute;
        }
        let mut interfaces: Vec<_> = routes.iter().map(|route| route.interface).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        NoAddress::NoUsableAddress { interfaces }
    })
}

/// How good a candidate is; the least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_ipv6: bool,
    metric: u32,
    is_secondary: bool,
    is_outside_of_gateway_network: bool,
}

/// The addresses that a route could be left with.
fn candidates(route: &DefaultRoute, addresses: &[OwnAddress]) -> impl Iterator<Item = (Rank, IpAddr)> + Clone {
    addresses.iter().filter(|own| own.is_usable() && own.address.is_ipv6() == route.is_ipv6).filter_map(|own| {
        let is_prescribed = match route.preferred_source {
            // The kernel allows any address of this machine here, not only one of the interface.
            Some(source) if source == own.address => true,
            None if route.interface == own.interface => false,
            Some(_) | None => return None,
        };
        let rank = Rank {
            is_ipv6: route.is_ipv6,
            metric: route.metric,
            is_secondary: own.is_secondary && !is_prescribed,
            is_outside_of_gateway_network: !is_prescribed
                && !route.gateway.is_some_and(|gateway| own.network_contains(gateway)),
        };
        Some((rank, own.address))
    })
}

impl OwnAddress {
    /// Whether others can reach this machine at this address.
    fn is_usable(&self) -> bool {
        let is_of_use = match self.address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        let is_special = self.address.is_loopback() || self.address.is_unspecified() || self.address.is_multicast();
        self.is_global && !self.is_tentative && !self.is_deprecated && is_of_use && !is_special
    }

    fn network_contains(&self, other: IpAddr) -> bool {
        let (own, other, length) = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        let host_bits = length - u32::from(self.prefix_length).min(length);
        // A shift by all 128 bits, for the prefix length 0, has no result, and then everything is inside.
        let differing: u128 = own ^ other;
        differing.checked_shr(host_bits).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `via <gateway> dev <interface> metric <metric> src <source>`, in any order and number, as `ip route` writes it.
    fn route(text: &str) -> DefaultRoute {
        let words: Vec<_> = text.split_whitespace().collect();
        let value = |name: &str| words.iter().position(|word| *word == name).map(|position| words[position + 1]);
        let gateway: Option<IpAddr> = value("via").map(|text| text.parse().unwrap());
        DefaultRoute {
            is_ipv6: words.contains(&"inet6"),
            metric: value("metric").map_or(0, |text| text.parse().unwrap()),
            interface: value("dev").unwrap().parse().unwrap(),
            gateway,
            preferred_source: value("src").map(|text| text.parse().unwrap()),
        }
    }

    /// `<address>/<prefix> dev <interface>` and any of `link`, `tentative`, `deprecated`, `secondary`.
    fn address(text: &str) -> OwnAddress {
        let words: Vec<_> = text.split_whitespace().collect();
        let (address, prefix_length) = words[0].split_once('/').unwrap();
        OwnAddress {
            interface: words[2].parse().unwrap(),
            address: address.parse().unwrap(),
            prefix_length: prefix_length.parse().unwrap(),
            is_global: !words.contains(&"link"),
            is_tentative: words.contains(&"tentative"),
            is_deprecated: words.contains(&"deprecated"),
            is_secondary: words.contains(&"secondary"),
        }
    }

    #[track_caller]
    fn check_from(current: &str, routes: &[&str], addresses: &[&str], expected: &str) {
        let routes: Vec<_> = routes.iter().map(|text| route(text)).collect();
        let addresses: Vec<_> = addresses.iter().map(|text| address(text)).collect();
        let found = match choose(&routes, &addresses, current.parse().ok()) {
            Ok(address) => address.to_string(),
            Err(NoAddress::NoDefaultRoute) => "no route".to_owned(),
            Err(NoAddress::NoUsableAddress { interfaces }) => format!("no address on {interfaces:?}"),
        };
        assert_eq!(found, expected);
    }

    #[track_caller]
    fn check(routes: &[&str], addresses: &[&str], expected: &str) {
        check_from("", routes, addresses, expected);
    }

    #[test]
    fn without_a_default_route_there_is_no_address() {
        check(&[], &[], "no route");
        check(&[], &["127.0.0.1/8 dev 1 link", "10.0.0.5/24 dev 2"], "no route");
        check(&["dev 3 metric 5", "dev 2", "inet6 dev 3"], &["127.0.0.1/8 dev 1"], "no address on [2, 3]");
    }

    #[test]
    fn the_route_decides_the_interface() {
        let addresses = ["127.0.0.1/8 dev 1 link", "10.0.0.5/24 dev 2", "192.168.0.5/24 dev 3"];
        check(&["via 192.168.0.1 dev 3"], &addresses, "192.168.0.5");
        check(&["dev 2"], &addresses, "10.0.0.5");
        check(&["via 192.168.0.1 dev 4"], &addresses, "no address on [4]");
    }

    #[test]
    fn the_lowest_metric_with_an_address_wins() {
        let routes = ["via 10.0.0.1 dev 2 metric 200", "via 192.168.0.1 dev 3 metric 100", "dev 4 metric 50"];
        check(&routes, &["10.0.0.5/24 dev 2", "192.168.0.5/24 dev 3"], "192.168.0.5");
        check(&routes, &["10.0.0.5/24 dev 2"], "10.0.0.5");
        check(&["dev 2", "dev 3"], &["192.168.0.5/24 dev 3", "10.0.0.5/24 dev 2"], "10.0.0.5");
    }

    #[test]
    fn ipv4_goes_before_ipv6_whatever_the_metrics_are() {
        let routes = ["inet6 via fe80::1 dev 2 metric 1", "via 10.0.0.1 dev 3 metric 1024"];
        check(&routes, &["fd00::5/64 dev 2", "10.0.0.5/24 dev 3"], "10.0.0.5");
        check(&routes, &["fd00::5/64 dev 2", "10.0.0.5/24 dev 2"], "fd00::5");
        check(&routes, &["10.0.0.5/24 dev 2"], "no address on [2, 3]");
    }

    #[test]
    fn a_prescribed_source_is_taken_wherever_it_is_and_nothing_instead() {
        let addresses = ["10.0.0.4/24 dev 2", "10.0.0.5/24 dev 2 secondary", "203.0.113.7/32 dev 1"];
        check(&["via 10.0.0.1 dev 2 src 10.0.0.5"], &addresses, "10.0.0.5");
        check(&["via 10.0.0.1 dev 2 src 203.0.113.7"], &addresses, "203.0.113.7");
        check(&["via 10.0.0.1 dev 2 src 10.0.0.9"], &addresses, "no address on [2]");
        check(&["via 10.0.0.1 dev 2 src 10.0.0.9", "dev 2 metric 9"], &addresses, "10.0.0.4");
    }

    #[test]
    fn addresses_that_nobody_can_reach_are_left_out() {
        let check = |address: &str| check(&["dev 2", "inet6 dev 2"], &[address], "no address on [2]");
        check("10.0.0.5/24 dev 2 tentative");
        check("10.0.0.5/24 dev 2 deprecated");
        check("10.0.0.5/24 dev 2 link");
        check("169.254.3.4/16 dev 2");
        check("127.0.0.1/8 dev 2");
        check("0.0.0.0/0 dev 2");
        check("fe80::5/64 dev 2");
        check("fe80::5/64 dev 2 link");
        check("fd00::5/64 dev 2 tentative");
        check("fd00::5/64 dev 2 deprecated");
        check("::1/128 dev 2");
    }

    #[test]
    fn primary_addresses_and_those_in_the_gateways_network_go_first() {
        let route = "via 10.0.1.1 dev 2";
        check(&[route], &["10.0.0.5/24 dev 2", "10.0.1.5/24 dev 2"], "10.0.1.5");
        check(&[route], &["10.0.0.5/24 dev 2", "10.0.1.5/24 dev 2 secondary"], "10.0.0.5");
        check(&[route], &["10.0.1.6/24 dev 2 secondary", "10.0.1.5/24 dev 2"], "10.0.1.5");
        check(&[route], &["10.0.1.5/32 dev 2", "0.0.0.5/0 dev 2"], "0.0.0.5");
        // A router that is reached by another family is in nobody's network.
        check(&["via fe80::1 dev 2"], &["10.0.0.5/24 dev 2", "10.0.1.5/24 dev 2"], "10.0.0.5");
        let routes = ["inet6 via fd00:1::1 dev 2"];
        check(&routes, &["fd00:2::5/64 dev 2", "fd00:1::5/64 dev 2", "::5/0 dev 2 secondary"], "fd00:1::5");
    }

    #[test]
    fn the_current_address_stays_while_none_is_better() {
        let routes = ["inet6 via fe80::1 dev 2 metric 5"];
        let addresses = ["fd00::9/64 dev 2", "fd00::5/64 dev 2", "fd00::7/64 dev 2 secondary"];
        check_from("fd00::5", &routes, &addresses, "fd00::5");
        check_from("fd00::7", &routes, &addresses, "fd00::9");
        check_from("fd00::1", &routes, &addresses, "fd00::9");
        let better = [routes[0], "inet6 dev 3 metric 1"];
        check_from("fd00::5", &better, &[addresses[1], "2001:db8::5/64 dev 3"], "2001:db8::5");
    }
}
