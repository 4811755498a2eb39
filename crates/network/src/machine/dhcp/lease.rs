//! What a server gives, and whether it can be taken.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;

use super::message::Reply;

/// Options of RFC 2132, 3442 and 4039 by their numbers.
pub(crate) mod option {
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTER: u8 = 3;
    pub(crate) const NAMESERVERS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const MTU: u8 = 26;
    pub(crate) const STATIC_ROUTES: u8 = 33;
    pub(crate) const TIME_SERVERS: u8 = 42;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const SERVER: u8 = 54;
    pub(crate) const RENEWAL_TIME: u8 = 58;
    pub(crate) const REBINDING_TIME: u8 = 59;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const RAPID_COMMIT: u8 = 80;
    pub(crate) const CLASSLESS_ROUTES: u8 = 121;
}

/// Most name servers, time servers or routes that are taken from one lease: a message has room for hundreds, and no use for
/// them.
const MOST: usize = 64;
/// Smallest packet size that is believed, in bytes: every host has to take this many (RFC 791).
const SMALLEST_MTU: u16 = 576;
/// A lease that never ends (RFC 2131, 3.3).
const FOREVER: u32 = u32::MAX;
/// When to renew, if the server does not say, as a part of the lease (RFC 2131, 4.4.5).
const RENEWAL_PART: f64 = 0.5;
/// When to ask every server, if none says, as a part of the lease (metropolis.md D.3).
const REBINDING_PART: f64 = 0.85;

/// An address for a time, and what a server tells of the network that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The address with the length of its network's prefix.
    pub(crate) address: Ipv4Net,
    /// Who gave it.
    pub(crate) server: Ipv4Addr,
    /// In the order in which they can be made: none needs a later one.
    pub(crate) routes: Vec<LeaseRoute>,
    pub(crate) nameservers: Vec<IpAddr>,
    pub(crate) time_servers: Vec<IpAddr>,
    /// Longest packet of the link, in bytes; absent: whatever the link does by itself.
    pub(crate) mtu: Option<u32>,
    /// Absent: for ever.
    pub(crate) duration: Option<Duration>,
    /// When to ask the server for more time, from the beginning.
    pub(crate) renew_after: Duration,
    /// When to ask every server, from the beginning; not before that.
    pub(crate) rebind_after: Duration,
}

/// A route that a server tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRoute {
    pub(crate) destination: Ipv4Net,
    /// Router; absent: the destination is on the link.
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Whether the router is on the link although no network there contains it.
    pub(crate) is_gateway_elsewhere: bool,
}

/// Why what a server offers cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unacceptable {
    #[error("it offers {0}, which is not an address that a machine can have")]
    Address(Ipv4Addr),
    #[error("it does not name itself (option 54)")]
    NoServer,
    #[error("it names itself {0}, which is not an address that a machine can have (option 54)")]
    Server(Ipv4Addr),
    #[error("it does not say for how long (option 51)")]
    NoTime,
    #[error("it gives the address for no time at all (option 51)")]
    NoTimeAtAll,
    #[error("the mask of its network is {0}, which is none (option 1)")]
    Mask(Ipv4Addr),
    #[error("{0} is the first or the last address of its network, which no machine can have")]
    EdgeOfNetwork(Ipv4Net),
}

impl Lease {
    /// What a server offers or confirms, if it can be taken (the table of metropolis.md D.3).
    pub(crate) fn from_reply(reply: &Reply) -> Result<Self, Unacceptable> {
        let address = reply.your_address;
        if !is_machine(address) {
            return Err(Unacceptable::Address(address));
        }
        let server = reply.addresses(option::SERVER).next().ok_or(Unacceptable::NoServer)?;
        if !is_machine(server) {
            return Err(Unacceptable::Server(server));
        }
        let seconds = match reply.number(option::LEASE_TIME) {
            None => return Err(Unacceptable::NoTime),
            Some(0) => return Err(Unacceptable::NoTimeAtAll),
            Some(seconds) => seconds,
        };
        let address = network(address, reply.addresses(option::SUBNET_MASK).next())?;
        let duration = Duration::from_secs(seconds.into());
        let given = |option| reply.number(option).map(|seconds| Duration::from_secs(seconds.into()));
        let rebind = given(option::REBINDING_TIME).unwrap_or_else(|| duration.mul_f64(REBINDING_PART)).min(duration);
        let renew = given(option::RENEWAL_TIME).unwrap_or_else(|| duration.mul_f64(RENEWAL_PART)).min(rebind);
        Ok(Self {
            address,
            server,
            routes: routes(reply, address),
            nameservers: servers(reply, option::NAMESERVERS),
            time_servers: servers(reply, option::TIME_SERVERS),
            mtu: reply.short(option::MTU).filter(|mtu| *mtu >= SMALLEST_MTU).map(u32::from),
            duration: (seconds != FOREVER).then_some(duration),
            renew_after: renew,
            rebind_after: rebind,
        })
    }
}

/// Whether a machine on some network may have this address.
fn is_machine(address: Ipv4Addr) -> bool {
    // 0.0.0.0/8 means "this network", and what begins with 240 and above is reserved up to the broadcast address.
    let first = address.octets()[0];
    first != 0 && first < 240 && !address.is_loopback() && !address.is_multicast() && !address.is_link_local()
}

/// The address in its network. Without a mask that is the one of its class, as of old.
fn network(address: Ipv4Addr, mask: Option<Ipv4Addr>) -> Result<Ipv4Net, Unacceptable> {
    let mask = mask.unwrap_or(match address.octets()[0] {
        0..128 => Ipv4Addr::new(255, 0, 0, 0),
        128..192 => Ipv4Addr::new(255, 255, 0, 0),
        192.. => Ipv4Addr::new(255, 255, 255, 0),
    });
    let network = Ipv4Net::with_netmask(address, mask).map_err(|_| Unacceptable::Mask(mask))?;
    if network.prefix_len() == 0 {
        return Err(Unacceptable::Mask(mask));
    }
    let is_edge = address == network.network() || address == network.broadcast();
    if network.prefix_len() < 31 && is_edge { Err(Unacceptable::EdgeOfNetwork(network)) } else { Ok(network) }
}

fn servers(reply: &Reply, option: u8) -> Vec<IpAddr> {
    let mut servers: Vec<IpAddr> = Vec::new();
    for server in reply.addresses(option).filter(|server| is_machine(*server)) {
        if !servers.contains(&server.into()) && servers.len() < MOST {
            servers.push(server.into());
        }
    }
    servers
}

/// The routes that follow from a reply (RFC 3442): those of option 121, or else the first router and the routes of option 33,
/// without what makes no sense.
fn routes(reply: &Reply, own: Ipv4Net) -> Vec<LeaseRoute> {
    let found: Vec<(Ipv4Net, Ipv4Addr)> = match reply.option(option::CLASSLESS_ROUTES).map(classless) {
        Some(routes) if !routes.is_empty() => routes,
        Some(_) | None => {
            let everywhere = Ipv4Net::default();
            let routers = reply.addresses(option::ROUTER).take(1).map(|router| (everywhere, router));
            let pairs = reply.addresses(option::STATIC_ROUTES).collect::<Vec<_>>();
            let pairs = pairs.as_chunks::<2>().0;
            let single = |address: Ipv4Addr| Ipv4Net::from(address);
            // A default route is not allowed there (RFC 2132, 5.8).
            let pairs = pairs.iter().filter(|[destination, _]| !destination.is_unspecified());
            routers.chain(pairs.map(|[destination, gateway]| (single(*destination), *gateway))).collect()
        }
    };
    sanitize(&found, own)
}

/// Takes option 121 apart; empty when it is damaged.
fn classless(bytes: &[u8]) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let mut routes = Vec::new();
    let mut rest = bytes;
    while let Some((&width, after)) = rest.split_first() {
        let length = usize::from(width.div_ceil(8));
        let Some((destination, after)) = after.split_at_checked(length) else { return Vec::new() };
        let Some((gateway, after)) = after.split_first_chunk::<4>() else { return Vec::new() };
        let mut octets = [0; 4];
        let Some(place) = octets.get_mut(..length) else { return Vec::new() };
        place.copy_from_slice(destination);
        let Ok(destination) = Ipv4Net::new(octets.into(), width) else { return Vec::new() };
        routes.push((destination, Ipv4Addr::from(*gateway)));
        rest = after;
    }
    routes
}

/// Leaves out what leads nowhere or twice to the same, cuts what is behind the prefix, and puts what is on the link first, so
/// that routers there can be used. (`SanitizeRoutes` of metropolis.md D.3.)
fn sanitize(found: &[(Ipv4Net, Ipv4Addr)], own: Ipv4Net) -> Vec<LeaseRoute> {
    let mut routes: Vec<LeaseRoute> = Vec::new();
    let mut add = |destination: Ipv4Net, gateway: Option<Ipv4Addr>, is_gateway_elsewhere| {
        let is_new = routes.iter().all(|route| route.destination != destination);
        if is_new && routes.len() < MOST {
            routes.push(LeaseRoute { destination, gateway, is_gateway_elsewhere });
        }
    };
    let leads_somewhere = |destination: &Ipv4Net| {
        let address = destination.addr();
        let is_everywhere = destination.prefix_len() == 0;
        is_everywhere || (address.octets()[0] != 0 && !address.is_multicast() && !address.is_loopback())
    };
    let cut: Vec<_> = found.iter().map(|(destination, gateway)| (destination.trunc(), *gateway)).collect();
    let sensible = || cut.iter().filter(|(destination, _)| leads_somewhere(destination));
    // Its own network is there with the address.
    for (destination, _) in
        sensible().filter(|(destination, gateway)| gateway.is_unspecified() && *destination != own.trunc())
    {
        add(*destination, None, false);
    }
    let on_link: Vec<Ipv4Net> =
        sensible().filter(|(_, gateway)| gateway.is_unspecified()).map(|route| route.0).collect();
    for (destination, gateway) in sensible().filter(|(_, gateway)| is_machine(*gateway) && *gateway != own.addr()) {
        let is_here = own.contains(gateway) || on_link.iter().any(|network| network.contains(gateway));
        add(*destination, Some(*gateway), !is_here);
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options by their numbers.
    type Options = &'static [(u8, &'static [u8])];

    fn reply(options: &[(u8, &[u8])]) -> Reply {
        let mut reply = Reply::for_test("10.1.0.5".parse().unwrap());
        let usual: [(u8, &[u8]); 3] = [
            (option::SERVER, &[10, 1, 0, 1]),
            (option::LEASE_TIME, &[0, 0, 0, 100]),
            (option::SUBNET_MASK, &[255, 255, 0, 0]),
        ];
        for (number, bytes) in usual.iter().chain(options) {
            reply.set(*number, bytes);
        }
        reply
    }

    #[test]
    fn a_lease_is_taken_or_refused_for_a_reason() {
        let table: [(&str, Options, Result<(), &str>); 16] = [
            ("10.1.0.5", &[], Ok(())),
            ("100.64.0.5", &[], Ok(())),
            ("0.0.0.0", &[], Err("it offers 0.0.0.0, which is not an address that a machine can have")),
            ("127.0.0.5", &[], Err("it offers 127.0.0.5, which is not an address that a machine can have")),
            ("224.0.0.5", &[], Err("it offers 224.0.0.5, which is not an address that a machine can have")),
            ("169.254.0.5", &[], Err("it offers 169.254.0.5, which is not an address that a machine can have")),
            ("255.255.255.255", &[], Err("it offers 255.255.255.255, which is not an address that a machine can have")),
            ("10.1.0.5", &[(option::SERVER, &[])], Err("it does not name itself (option 54)")),
            (
                "10.1.0.5",
                &[(option::SERVER, &[0, 0, 0, 0])],
                Err("it names itself 0.0.0.0, which is not an address that a machine can have (option 54)"),
            ),
            ("10.1.0.5", &[(option::LEASE_TIME, &[1, 2])], Err("it does not say for how long (option 51)")),
            ("10.1.0.5", &[(option::LEASE_TIME, &[0; 4])], Err("it gives the address for no time at all (option 51)")),
            (
                "10.1.0.5",
                &[(option::SUBNET_MASK, &[255, 0, 255, 0])],
                Err("the mask of its network is 255.0.255.0, which is none (option 1)"),
            ),
            (
                "10.1.0.5",
                &[(option::SUBNET_MASK, &[0; 4])],
                Err("the mask of its network is 0.0.0.0, which is none (option 1)"),
            ),
            ("10.1.0.5", &[(option::SUBNET_MASK, &[255; 4])], Ok(())),
            (
                "10.1.0.0",
                &[],
                Err("10.1.0.0/16 is the first or the last address of its network, which no machine can have"),
            ),
            (
                "10.1.255.255",
                &[],
                Err("10.1.255.255/16 is the first or the last address of its network, which no machine can have"),
            ),
        ];
        for (address, options, expected) in table {
            let reply = Reply { your_address: address.parse().unwrap(), ..reply(options) };
            let found = Lease::from_reply(&reply).map(drop).map_err(|reason| reason.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{address} {options:?}");
        }
    }

    #[test]
    fn the_network_is_that_of_the_mask_or_of_the_class() {
        let without: &[(u8, &[u8])] = &[(option::SUBNET_MASK, &[])];
        let table = [
            ("10.1.2.3", reply(&[]), "10.1.2.3/16"),
            ("10.1.2.3", reply(without), "10.1.2.3/8"),
            ("172.16.2.3", reply(without), "172.16.2.3/16"),
            ("192.0.2.3", reply(without), "192.0.2.3/24"),
        ];
        for (address, reply, expected) in table {
            let lease = Lease::from_reply(&Reply { your_address: address.parse().unwrap(), ..reply }).unwrap();
            assert_eq!(lease.address.to_string(), expected);
        }
    }

    #[test]
    fn times_are_in_order_whatever_the_server_says() {
        let seconds = |text: &[u8]| -> Vec<(u8, Vec<u8>)> {
            let numbers = [option::LEASE_TIME, option::RENEWAL_TIME, option::REBINDING_TIME];
            numbers.into_iter().zip(text.iter().map(|byte| vec![0, 0, 0, *byte])).collect()
        };
        // What the server says, and what is made of it, in ms.
        let table: [(&[u8], [u64; 3]); 6] = [
            (&[100], [50_000, 85_000, 100_000]),
            (&[100, 20], [20_000, 85_000, 100_000]),
            (&[100, 20, 40], [20_000, 40_000, 100_000]),
            (&[100, 90], [85_000, 85_000, 100_000]),
            (&[100, 60, 40], [40_000, 40_000, 100_000]),
            (&[1, 200, 200], [1000, 1000, 1000]),
        ];
        for (given, [renew, rebind, duration]) in table {
            let options = seconds(given);
            let options: Vec<(u8, &[u8])> = options.iter().map(|(number, bytes)| (*number, &**bytes)).collect();
            let lease = Lease::from_reply(&reply(&options)).unwrap();
            let milliseconds = Duration::from_millis;
            let found = (lease.renew_after, lease.rebind_after, lease.duration);
            assert_eq!(found, (milliseconds(renew), milliseconds(rebind), Some(milliseconds(duration))), "{given:?}");
        }
        assert_eq!(Lease::from_reply(&reply(&[(option::LEASE_TIME, &[255; 4])])).unwrap().duration, None);
    }

    #[test]
    fn routes_come_from_one_option_and_make_sense() {
        const ROUTER: (u8, &[u8]) = (option::ROUTER, &[10, 1, 0, 1, 10, 1, 0, 2]);
        const OLD: (u8, &[u8]) = (option::STATIC_ROUTES, &[192, 0, 2, 7, 10, 1, 0, 3, 0, 0, 0, 0, 10, 1, 0, 4]);
        let table: [(Options, &[&str]); 10] = [
            (&[], &[]),
            (&[ROUTER], &["0.0.0.0/0 via 10.1.0.1"]),
            (&[ROUTER, OLD], &["0.0.0.0/0 via 10.1.0.1", "192.0.2.7/32 via 10.1.0.3"]),
            // Option 121 silences the others, also where it has no default route.
            (&[ROUTER, OLD, (option::CLASSLESS_ROUTES, &[24, 192, 0, 2, 10, 1, 0, 9])], &["192.0.2.0/24 via 10.1.0.9"]),
            // Cut short, too wide, or empty, it is as good as absent.
            (&[ROUTER, (option::CLASSLESS_ROUTES, &[24, 192, 0, 2, 10, 1])], &["0.0.0.0/0 via 10.1.0.1"]),
            (&[ROUTER, (option::CLASSLESS_ROUTES, &[33, 1, 2, 3, 4, 5, 10, 1, 0, 9])], &["0.0.0.0/0 via 10.1.0.1"]),
            (&[ROUTER, (option::CLASSLESS_ROUTES, &[])], &["0.0.0.0/0 via 10.1.0.1"]),
            // A router outside of the own network, reached by a route of its own, which comes first.
            (
                &[(option::CLASSLESS_ROUTES, &[0, 10, 9, 0, 1, 32, 10, 9, 0, 1, 0, 0, 0, 0])],
                &["10.9.0.1/32", "0.0.0.0/0 via 10.9.0.1"],
            ),
            // One without.
            (&[(option::ROUTER, &[10, 9, 0, 1])], &["0.0.0.0/0 via 10.9.0.1 elsewhere"]),
            // Bits behind the prefix, twice the same, to nowhere, and through this machine itself.
            (
                &[(
                    option::CLASSLESS_ROUTES,
                    &[
                        8, 20, 10, 1, 0, 9, 8, 20, 10, 1, 0, 8, 16, 127, 1, 10, 1, 0, 9, 16, 21, 1, 10, 1, 0, 5, 17,
                        22, 1, 127, 10, 1, 0, 9, 16, 10, 1, 0, 0, 0, 0,
                    ],
                )],
                &["20.0.0.0/8 via 10.1.0.9", "22.1.0.0/17 via 10.1.0.9"],
            ),
        ];
        for (options, expected) in table {
            let routes = Lease::from_reply(&reply(options)).unwrap().routes;
            let found: Vec<String> = routes
                .iter()
                .map(|LeaseRoute { destination, gateway, is_gateway_elsewhere }| {
                    let gateway = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
                    format!("{destination}{gateway}{}", if *is_gateway_elsewhere { " elsewhere" } else { "" })
                })
                .collect();
            assert_eq!(found, expected, "{options:?}");
        }
    }

    #[test]
    fn servers_are_those_that_can_be() {
        let lease = Lease::from_reply(&reply(&[
            (option::NAMESERVERS, &[10, 1, 0, 1, 0, 0, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1, 7]),
            (option::TIME_SERVERS, &[10, 1, 0, 3]),
            (option::MTU, &[5, 170]),
        ]));
        let lease = lease.unwrap();
        assert_eq!(lease.nameservers, ["10.1.0.1", "10.1.0.2"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert_eq!(lease.time_servers, ["10.1.0.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(lease.mtu, Some(1450));
        assert_eq!(Lease::from_reply(&reply(&[(option::MTU, &[0, 68])])).unwrap().mtu, None);
    }
}
