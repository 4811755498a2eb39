//! The static configuration as a list of operations: what is to be done so that the machine has what it says.
//!
//! The plan is made from the configuration and from what the kernel has, and from nothing else. What is there already is not in
//! it, so that a second plan right after the first was carried out is empty. Nothing in it removes anything.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use polis_network_configuration::{
    Bond, Device, DeviceMatch, HardwareAddress, Interface, InterfaceKind, NetworkConfiguration, Route, Vlan,
};

use super::kernel::{Kernel, KernelRoute, Link, LinkKind};
use super::switches::Ipv6Switches;

/// Name of the interface by which a machine talks to itself. The kernel gives it, and it is down at first.
const LOOPBACK: &str = "lo";
/// Metric that the kernel gives to IPv6 routes without one.
const IPV6_DEFAULT_METRIC: u32 = 1024;

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<Operation>,
    /// Devices that the machine does not have.
    pub(crate) missing: Vec<Missing>,
    /// What cannot be done because something else is in the way, in words.
    pub(crate) conflicts: Vec<String>,
}

/// A device that the machine does not have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Missing {
    /// Name of the interface.
    pub(crate) interface: String,
    /// How the device was to be found.
    pub(crate) device: Device,
}

/// One thing to do to an interface.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// Name of the interface, at the time when this is done.
    pub(crate) interface: String,
    pub(crate) step: Step,
}

/// What to do to an interface.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Give it another name. It has to be down.
    Rename {
        to: String,
    },
    /// Make it a new bond.
    AddBond {
        bond: Bond,
        hardware: Option<HardwareAddress>,
    },
    /// Make it a new VLAN.
    AddVlan {
        vlan: Vlan,
    },
    /// Make it a member of a bond. It has to be down.
    Join {
        bond: String,
    },
    Down,
    Up,
    SetMtu {
        mtu: u32,
    },
    SetIpv6 {
        switches: Ipv6Switches,
    },
    AddAddress {
        address: IpNet,
    },
    AddRoute {
        route: Route,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.interface;
        match &self.step {
            Step::Rename { to } => write!(formatter, "rename {name} to {to}"),
            Step::AddBond { bond, hardware } => {
                write!(formatter, "make {name}, a bond of {}", bond.members.join(" and "))?;
                hardware.map_or(Ok(()), |hardware| write!(formatter, " with {hardware}"))
            }
            Step::AddVlan { vlan } => write!(formatter, "make {name}, VLAN {} on {}", vlan.id, vlan.parent),
            Step::Join { bond } => write!(formatter, "make {name} a member of {bond}"),
            Step::Down => write!(formatter, "take {name} down"),
            Step::Up => write!(formatter, "take {name} up"),
            Step::SetMtu { mtu } => write!(formatter, "set the MTU of {name} to {mtu}"),
            Step::SetIpv6 { switches: Ipv6Switches { accept_announcements, temporary_addresses } } => write!(
                formatter,
                "set IPv6 of {name} to accept_ra={accept_announcements} use_tempaddr={temporary_addresses}"
            ),
            Step::AddAddress { address } => write!(formatter, "give {name} the address {address}"),
            Step::AddRoute { route: Route { destination, gateway, source, metric } } => {
                write!(formatter, "give {name} the route to {destination}")?;
                gateway.map_or(Ok(()), |gateway| write!(formatter, " via {gateway}"))?;
                source.map_or(Ok(()), |source| write!(formatter, " from {source}"))?;
                metric.map_or(Ok(()), |metric| write!(formatter, " with metric {metric}"))
            }
        }
    }
}

/// What is to be done with or without a configuration: a machine talks to itself.
pub(crate) fn take_up_loopback(kernel: &Kernel) -> Option<Operation> {
    let link = kernel.link(LOOPBACK).filter(|link| !link.is_up)?;
    Some(Operation { interface: link.name.clone(), step: Step::Up })
}

/// What is to be done without a configuration: every device is taken up.
pub(crate) fn take_up_all(kernel: &Kernel) -> Vec<Operation> {
    let down = kernel.links.iter().filter(|link| link.is_free_device() && !link.is_up);
    down.map(|link| Operation { interface: link.name.clone(), step: Step::Up }).collect()
}

/// What is to be done so that the machine has what the configuration says.
pub(crate) fn plan(configuration: &NetworkConfiguration, kernel: &Kernel) -> Plan {
    let names = kernel.links.iter().map(|link| (link.index, link.name.clone())).collect();
    let mut planner = Planner { configuration, kernel, plan: Plan::default(), there: BTreeMap::new(), names };
    for interface in configuration.interfaces() {
        planner.interface(interface);
    }
    // Behind all addresses, as a route may need that of another interface.
    for interface in configuration.interfaces() {
        planner.routes(interface);
    }
    planner.plan
}

struct Planner<'a> {
    configuration: &'a NetworkConfiguration,
    kernel: &'a Kernel,
    plan: Plan,
    /// The interfaces that will be there when the plan is carried out, with the link for those that are there already.
    there: BTreeMap<&'a str, Option<&'a Link>>,
    /// What the links are called, as far as the plan has come.
    names: BTreeMap<u32, String>,
}

impl<'a> Planner<'a> {
    fn add(&mut self, interface: &str, step: Step) {
        self.plan.operations.push(Operation { interface: interface.to_owned(), step });
    }

    fn interface(&mut self, interface: &'a Interface) {
        let name = &interface.name;
        let link = match &interface.kind {
            InterfaceKind::Device(device) => self.device(name, device),
            InterfaceKind::Bond(bond) => self.bond(name, bond),
            InterfaceKind::Vlan(vlan) => self.vlan(name, vlan),
        };
        let Some(link) = link else { return };
        self.there.insert(name, link);
        if let Some(mtu) = interface.mtu.filter(|mtu| link.is_none_or(|link| link.mtu != *mtu)) {
            self.add(name, Step::SetMtu { mtu });
        }
        if self.configuration.bond_of(name).is_none() {
            let switches = Ipv6Switches::of(interface.ipv6_autoconfig);
            let known = link.map(|link| link.ipv6);
            // A new interface has whatever the kernel gives it; one without switches is in a kernel without IPv6.
            if known.is_none_or(|known| known.is_some_and(|known| known != switches)) {
                self.add(name, Step::SetIpv6 { switches });
            }
            let has_new_name = link.is_some_and(|link| link.name != *name);
            if link.is_none_or(|link| !link.is_up) || has_new_name {
                self.add(name, Step::Up);
            }
        }
        for address in &interface.addresses {
            if link.is_none_or(|link| !self.kernel.has_address(link.index, *address)) {
                self.add(name, Step::AddAddress { address: *address });
            }
        }
    }

    /// The link of a device; `None` if the machine does not have it, `Some(None)` never.
    fn device(&mut self, name: &str, device: &Device) -> Option<Option<&'a Link>> {
        let matches = |link: &&Link| {
            link.kind == LinkKind::Device
                && match &device.found_by {
                    DeviceMatch::HardwareAddress(address) => link.made_with() == Some(*address),
                    DeviceMatch::Driver(driver) => link.driver.as_ref() == Some(driver),
                }
        };
        let number = usize::try_from(device.index).unwrap_or(usize::MAX);
        let Some(link) = self.kernel.links.iter().filter(matches).nth(number) else {
            self.plan.missing.push(Missing { interface: name.to_owned(), device: device.clone() });
            return None;
        };
        if self.names[&link.index] != name {
            self.free_name(name)?;
            self.rename(link, name);
        }
        Some(Some(link))
    }

    fn rename(&mut self, link: &Link, to: &str) {
        let now = std::mem::replace(self.names.entry(link.index).or_default(), to.to_owned());
        // Kernels before 6.3 rename only what is down.
        if link.is_up {
            self.add(&now, Step::Down);
        }
        self.add(&now, Step::Rename { to: to.to_owned() });
    }

    /// Makes sure that nobody has this name: another device gets one that nobody else uses.
    fn free_name(&mut self, name: &str) -> Option<()> {
        let Some(other) = self.kernel.links.iter().find(|link| self.names[&link.index] == name) else {
            return Some(());
        };
        if other.kind != LinkKind::Device {
            self.conflict(name, "is the name of an interface that is no device");
            return None;
        }
        let aside = format!("aside{}", other.index);
        self.rename(other, &aside);
        if other.is_up {
            self.add(&aside, Step::Up);
        }
        Some(())
    }

    fn conflict(&mut self, name: &str, what: &str) {
        self.plan.conflicts.push(format!("{name} {what}"));
    }

    /// The link of a bond, if it is there; `None` if it cannot be made.
    fn bond(&mut self, name: &str, bond: &Bond) -> Option<Option<&'a Link>> {
        let members: Vec<(&String, &Link)> =
            bond.members.iter().filter_map(|member| Some((member, (*self.there.get(&**member)?)?))).collect();
        // With no member there is nothing to be had from it. It comes with the first.
        let (_, first) = members.first()?;
        let link = self.kernel.link(name);
        match link {
            None => self.add(name, Step::AddBond { bond: bond.clone(), hardware: first.made_with() }),
            Some(Link { kind: LinkKind::Bond, .. }) => {}
            Some(_) => {
                self.conflict(name, "is the name of an interface that is no bond");
                return None;
            }
        }
        for (member, member_link) in members {
            if link.is_some_and(|link| member_link.controller == Some(link.index)) {
                continue;
            }
            // One that has just got its name is down already.
            if member_link.is_up && member_link.name == *member {
                self.add(member, Step::Down);
            }
            self.add(member, Step::Join { bond: name.to_owned() });
            self.add(member, Step::Up);
        }
        Some(link)
    }

    /// The link of a VLAN, if it is there; `None` if it cannot be made.
    fn vlan(&mut self, name: &str, vlan: &Vlan) -> Option<Option<&'a Link>> {
        let parent = *self.there.get(&*vlan.parent)?;
        let link = self.kernel.link(name);
        let expected = |found: &Link| {
            parent.is_some_and(|parent| {
                found.kind == LinkKind::Vlan { parent: parent.index, id: vlan.id, protocol: vlan.protocol }
            })
        };
        match link {
            None => self.add(name, Step::AddVlan { vlan: vlan.clone() }),
            Some(found) if expected(found) => {}
            Some(_) => {
                self.conflict(name, "is the name of an interface that is not this VLAN");
                return None;
            }
        }
        Some(link)
    }

    fn routes(&mut self, interface: &'a Interface) {
        let Some(link) = self.there.get(&*interface.name).copied() else { return };
        for route in &interface.routes {
            let has = |found: &KernelRoute| {
                let default = if route.destination.addr().is_ipv6() { IPV6_DEFAULT_METRIC } else { 0 };
                let source = |wanted: IpAddr| found.source == Some(wanted);
                found.destination == route.destination
                    && found.interface == link.map(|link| link.index)
                    && found.gateway == route.gateway
                    && found.metric == route.metric.unwrap_or(default)
                    && route.source.is_none_or(source)
            };
            // The kernel takes an IPv6 source only once it knows that nobody else has it, and tells when that is so.
            let is_usable = |source: IpAddr| {
                source.is_ipv4() || self.kernel.addresses.iter().any(|own| own.address == source && !own.is_tentative)
            };
            if !self.kernel.routes.iter().any(has) && route.source.is_none_or(is_usable) {
                self.add(&interface.name, Step::AddRoute { route: route.clone() });
            }
        }
    }
}
