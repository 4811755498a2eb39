//! Which of its addresses is that of the node, and whom it asks for names and for the time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use polis_network_configuration::{Interface, NetworkConfiguration};

use super::client::{Entry, Obtained};
use super::kernel::Kernel;

/// What follows for the rest of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) address: Option<IpAddr>,
    pub(crate) nameservers: Vec<IpAddr>,
    pub(crate) time_servers: Vec<IpAddr>,
}

/// Chooses (metropolis.md D.4). An address counts only when the kernel has it.
pub(crate) fn choose(
    configuration: Option<&NetworkConfiguration>,
    entries: &BTreeMap<u32, Entry>,
    kernel: &Kernel,
) -> Choice {
    let mut leases: Vec<(u32, &Obtained)> =
        entries.iter().filter_map(|(index, entry)| Some((*index, entry.lease.as_ref()?))).collect();
    leases.sort_by_key(|(_, obtained)| obtained.rank);
    let leased = leases.iter().filter(|(index, obtained)| kernel.has_address(*index, obtained.lease.address.into()));
    let leased = leased.map(|(_, obtained)| IpAddr::V4(obtained.lease.address.addr())).next();
    let address = match configuration {
        Some(configuration) if !configuration.uses_dhcp() => static_address(configuration, kernel),
        Some(_) | None => leased,
    };
    let all = |servers: fn(&Obtained) -> &[IpAddr]| {
        let mut all: Vec<IpAddr> = Vec::new();
        for server in leases.iter().flat_map(|(_, obtained)| servers(obtained)) {
            if !all.contains(server) {
                all.push(*server);
            }
        }
        all
    };
    let own = configuration.map(NetworkConfiguration::nameservers).filter(|servers| !servers.is_empty());
    Choice {
        address,
        nameservers: own.map_or_else(|| all(|obtained| &obtained.lease.nameservers), <[IpAddr]>::to_vec),
        time_servers: all(|obtained| &obtained.lease.time_servers),
    }
}

/// The first static address that the kernel has, as they were given, IPv4 before IPv6.
fn static_address(configuration: &NetworkConfiguration, kernel: &Kernel) -> Option<IpAddr> {
    let is_there = |(interface, address): &(&Interface, IpNet)| {
        kernel.link(&interface.name).is_some_and(|link| kernel.has_address(link.index, *address))
    };
    let addresses = configuration.addresses().filter(is_there);
    let is_tentative = |address: IpAddr| kernel.addresses.iter().any(|own| own.address == address && own.is_tentative);
    let usable = addresses.map(|(_, address)| address.addr()).filter(|address| !is_tentative(*address));
    usable.min_by_key(IpAddr::is_ipv6)
}
