//! Parses the wire message, field by field.

use std::net::IpAddr;

use ipnet::IpNet;
use polis_proto::osbase::net::proto as wire;

use crate::error::NAME_RULE;
use crate::order::{below, order};
use crate::{
    Bond, BondMode, CarrierMonitor, ConfigurationError, Device, DeviceMatch, HardwareAddress, INTERFACE_NAME_LIMIT,
    Interface, InterfaceKind, Ipv6Privacy, LacpRate, LacpSelection, MAX_ENTRIES, MAX_INTERFACES, Problem, Route,
    TransmitHash, Vlan, VlanProtocol,
};

type Result<T> = std::result::Result<T, ConfigurationError>;

/// Smallest packet that a link must carry, in bytes: IPv4's (RFC 791), which the kernel asks of Ethernet devices, too.
const MINIMUM_MTU: u32 = 68;
/// Largest packet that IP knows, in bytes.
const MAXIMUM_MTU: u32 = 65_535;
/// Largest number of a VLAN: 4095 is reserved (IEEE 802.1Q).
const MAXIMUM_VLAN: i32 = 4094;
/// Largest key of a port: ten bits (the kernel's documentation of bonding).
const MAXIMUM_USER_PORT_KEY: i32 = 1023;
/// Names that the kernel and its /proc/sys use otherwise.
const RESERVED_NAMES: [&str; 5] = [".", "..", "all", "default", "lo"];

pub(crate) struct Parsed {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) nameservers: Vec<IpAddr>,
}

pub(crate) fn parse(net: &wire::Net) -> Result<Parsed> {
    if net.interface.is_empty() {
        return Err(Problem::Missing { what: "at least one interface" }.at("interface"));
    }
    limit("interface", net.interface.len(), MAX_INTERFACES)?;
    limit("nameserver", net.nameserver.len(), MAX_ENTRIES)?;
    let nameserver = |(number, server): (usize, &wire::Nameserver)| ip(&format!("nameserver[{number}].ip"), &server.ip);
    let nameservers = net.nameserver.iter().enumerate().map(nameserver).collect::<Result<_>>()?;
    let interface =
        |(number, found): (usize, &wire::Interface)| parse_interface(&format!("interface[{number}]"), found);
    let interfaces: Vec<Interface> = net.interface.iter().enumerate().map(interface).collect::<Result<_>>()?;
    check_together(&interfaces)?;
    let interfaces = order(interfaces).map_err(|names| Problem::Circle { names }.at("interface"))?;
    Ok(Parsed { interfaces, nameservers })
}

/// What can only be seen with all interfaces in sight.
fn check_together(interfaces: &[Interface]) -> Result<()> {
    for (number, interface) in interfaces.iter().enumerate() {
        let field = format!("interface[{number}]");
        let earlier = &interfaces[..number];
        if let Some(same) = earlier.iter().position(|other| other.name == interface.name) {
            let already = format!("the name of interface[{same}]");
            return Err(Problem::Again { found: interface.name.clone(), already }.at(format!("{field}.name")));
        }
        let twice = |other: &Interface| other.kind == interface.kind;
        if let Some(same) = earlier.iter().position(twice) {
            let found = match &interface.kind {
                InterfaceKind::Device(device) => device.to_string(),
                InterfaceKind::Vlan(vlan) => format!("{} on {}", vlan.id, vlan.parent),
                InterfaceKind::Bond(bond) => bond.members.join(", "),
            };
            return Err(Problem::Again { found, already: format!("interface[{same}]") }.at(format!("{field}.type")));
        }
        for name in below(interface) {
            let kind = match &interface.kind {
                InterfaceKind::Bond(_) => "bond.member_interface",
                InterfaceKind::Vlan(_) | InterfaceKind::Device(_) => "vlan.parent",
            };
            let Some(other) = interfaces.iter().find(|other| other.name == name) else {
                return Err(Problem::NoSuchInterface { name: name.to_owned() }.at(format!("{field}.{kind}")));
            };
            if let InterfaceKind::Bond(_) = interface.kind {
                check_member(interfaces, number, other)?;
            }
        }
    }
    Ok(())
}

/// A member of a bond has no addresses and is in no other bond.
fn check_member(interfaces: &[Interface], bond: usize, member: &Interface) -> Result<()> {
    let has_addresses = member.ipv4_autoconfig
        || member.ipv6_autoconfig.is_some()
        || !member.addresses.is_empty()
        || !member.routes.is_empty();
    let number = interfaces.iter().position(|other| other.name == member.name).unwrap_or_default();
    if has_addresses {
        let problem = Problem::MemberWithAddresses { bond: interfaces[bond].name.clone() };
        return Err(problem.at(format!("interface[{number}]")));
    }
    let others = interfaces[..bond].iter().filter(|other| matches!(other.kind, InterfaceKind::Bond(_)));
    for other in others {
        if below(other).contains(&&*member.name) {
            let already = format!("a member of the bond \"{}\"", other.name);
            let problem = Problem::Again { found: member.name.clone(), already };
            return Err(problem.at(format!("interface[{bond}].bond.member_interface")));
        }
    }
    Ok(())
}

fn parse_interface(field: &str, found: &wire::Interface) -> Result<Interface> {
    name(&format!("{field}.name"), &found.name)?;
    let kind = match &found.r#type {
        None => return Err(Problem::Missing { what: "one of device, bond and vlan" }.at(format!("{field}.type"))),
        Some(wire::interface::Type::Device(device)) => {
            InterfaceKind::Device(parse_device(&format!("{field}.device"), device)?)
        }
        Some(wire::interface::Type::Bond(bond)) => InterfaceKind::Bond(parse_bond(&format!("{field}.bond"), bond)?),
        Some(wire::interface::Type::Vlan(vlan)) => InterfaceKind::Vlan(parse_vlan(&format!("{field}.vlan"), vlan)?),
    };
    limit(&format!("{field}.address"), found.address.len(), MAX_ENTRIES)?;
    limit(&format!("{field}.route"), found.route.len(), MAX_ENTRIES)?;
    let address = |(number, text): (usize, &String)| parse_address(&format!("{field}.address[{number}]"), text);
    let route = |(number, found): (usize, &_)| parse_route(&format!("{field}.route[{number}]"), found);
    Ok(Interface {
        name: found.name.clone(),
        kind,
        ipv4_autoconfig: found.ipv4_autoconfig.is_some(),
        ipv6_autoconfig: match &found.ipv6_autoconfig {
            None => None,
            Some(autoconfig) => Some(parse_privacy(&format!("{field}.ipv6_autoconfig.privacy"), autoconfig.privacy)?),
        },
        addresses: found.address.iter().enumerate().map(address).collect::<Result<_>>()?,
        routes: found.route.iter().enumerate().map(route).collect::<Result<_>>()?,
        mtu: match u32::try_from(found.mtu) {
            Ok(0) => None,
            Ok(mtu @ MINIMUM_MTU..=MAXIMUM_MTU) => Some(mtu),
            Ok(_) | Err(_) => {
                let expected = "0 for the kernel's default, or 68 to 65535 bytes";
                return Err(Problem::unusable(found.mtu, expected).at(format!("{field}.mtu")));
            }
        },
    })
}

fn parse_device(field: &str, found: &wire::Device) -> Result<Device> {
    let found_by = match (&*found.hardware_address, &*found.driver) {
        ("", "") => return Err(Problem::Missing { what: "hardware_address or driver" }.at(field)),
        ("", driver) => {
            if driver.len() > 64 || !driver.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') {
                return Err(Problem::unusable(driver, "a name of a kernel driver").at(format!("{field}.driver")));
            }
            DeviceMatch::Driver(driver.to_owned())
        }
        (address, _) => DeviceMatch::HardwareAddress(hardware_address(&format!("{field}.hardware_address"), address)?),
    };
    Ok(Device { found_by, index: number(&format!("{field}.index"), found.index)? })
}

fn parse_bond(field: &str, found: &wire::Bond) -> Result<Bond> {
    let members_field = format!("{field}.member_interface");
    if found.member_interface.is_empty() {
        return Err(Problem::Missing { what: "at least one member" }.at(members_field));
    }
    limit(&members_field, found.member_interface.len(), MAX_ENTRIES)?;
    for (number, member) in found.member_interface.iter().enumerate() {
        if let Some(same) = found.member_interface[..number].iter().position(|other| other == member) {
            let already = format!("{members_field}[{same}]");
            return Err(Problem::Again { found: member.clone(), already }.at(format!("{members_field}[{number}]")));
        }
    }
    let mode = match &found.mode {
        None => return Err(Problem::Missing { what: "one of lacp and active_backup" }.at(format!("{field}.mode"))),
        Some(wire::bond::Mode::ActiveBackup(_)) => BondMode::ActiveBackup,
        Some(wire::bond::Mode::Lacp(lacp)) => parse_lacp(&format!("{field}.lacp"), lacp)?,
    };
    Ok(Bond {
        members: found.member_interface.clone(),
        min_links: Some(number(&format!("{field}.min_links"), found.min_links)?).filter(|links| *links > 0),
        carrier_monitor: match &found.link_monitor {
            None => CarrierMonitor::default(),
            Some(wire::bond::LinkMonitor::CarrierMonitor(monitor)) => {
                parse_monitor(&format!("{field}.carrier_monitor"), monitor)?
            }
        },
        transmit_hash: parse_hash(&format!("{field}.transmit_hash_policy"), found.transmit_hash_policy)?,
        mode,
    })
}

fn parse_monitor(field: &str, found: &wire::bond::CarrierMonitor) -> Result<CarrierMonitor> {
    let interval = number(&format!("{field}.polling_interval_ms"), found.polling_interval_ms)?;
    Ok(CarrierMonitor {
        // The kernel's default is not to look at all, which would be a bond that never notices anything.
        polling_interval_ms: if interval == 0 { CarrierMonitor::DEFAULT_INTERVAL } else { interval },
        force_polling: found.force_polling,
        down_delay_ms: number(&format!("{field}.down_delay_ms"), found.down_delay_ms)?,
        up_delay_ms: number(&format!("{field}.up_delay_ms"), found.up_delay_ms)?,
    })
}

fn parse_lacp(field: &str, found: &wire::bond::Lacp) -> Result<BondMode> {
    use wire::bond::lacp::{Rate, SelectionLogic};

    let rate = match Rate::try_from(found.rate) {
        Ok(Rate::Slow) => LacpRate::Slow,
        Ok(Rate::Fast) => LacpRate::Fast,
        Err(_) => return Err(Problem::unusable(found.rate, "a known rate").at(format!("{field}.rate"))),
    };
    let selection = match SelectionLogic::try_from(found.selection_logic) {
        Ok(SelectionLogic::Stable) => LacpSelection::Stable,
        Ok(SelectionLogic::Bandwidth) => LacpSelection::Bandwidth,
        Ok(SelectionLogic::Count) => LacpSelection::Count,
        Err(_) => {
            let problem = Problem::unusable(found.selection_logic, "a known selection logic");
            return Err(problem.at(format!("{field}.selection_logic")));
        }
    };
    let small = |name: &str, value: i32, most: i32, expected| {
        if value > most || value < 0 {
            return Err(Problem::unusable(value, expected).at(format!("{field}.{name}")));
        }
        Ok(u16::try_from(value).ok().filter(|value| *value > 0))
    };
    let priority = "0 for the kernel's default, or 1 to 65535";
    let port_key = "0 for none, or 1 to 1023";
    Ok(BondMode::Lacp {
        rate,
        selection,
        actor_system_priority: small("actor_system_priority", found.actor_system_priority, 65_535, priority)?,
        user_port_key: small("user_port_key", found.user_port_key, MAXIMUM_USER_PORT_KEY, port_key)?,
        actor_system: match &*found.actor_system_mac {
            "" => None,
            address => Some(hardware_address(&format!("{field}.actor_system_mac"), address)?),
        },
    })
}

fn parse_hash(field: &str, found: i32) -> Result<TransmitHash> {
    use wire::bond::TransmitHashPolicy as Wire;

    Ok(match Wire::try_from(found) {
        Ok(Wire::Layer2) => TransmitHash::Layer2,
        Ok(Wire::Layer34) => TransmitHash::Layer34,
        Ok(Wire::Layer23) => TransmitHash::Layer23,
        Ok(Wire::EncapLayer23) => TransmitHash::EncapsulatedLayer23,
        Ok(Wire::EncapLayer34) => TransmitHash::EncapsulatedLayer34,
        Ok(Wire::VlanSrcmac) => TransmitHash::VlanSourceAddress,
        Err(_) => return Err(Problem::unusable(found, "a known policy").at(field)),
    })
}

fn parse_privacy(field: &str, found: i32) -> Result<Ipv6Privacy> {
    use wire::i_pv6_autoconfig::Privacy;

    Ok(match Privacy::try_from(found) {
        Ok(Privacy::Disable) => Ipv6Privacy::Disable,
        Ok(Privacy::Avoid) => Ipv6Privacy::Avoid,
        Ok(Privacy::Prefer) => Ipv6Privacy::Prefer,
        Err(_) => return Err(Problem::unusable(found, "a known choice").at(field)),
    })
}

fn parse_vlan(field: &str, found: &wire::Vlan) -> Result<Vlan> {
    if found.parent.is_empty() {
        return Err(Problem::Missing { what: "the name of the interface below" }.at(format!("{field}.parent")));
    }
    let id = u16::try_from(found.id).ok().filter(|id| *id > 0 && found.id <= MAXIMUM_VLAN);
    Ok(Vlan {
        parent: found.parent.clone(),
        id: id.ok_or_else(|| Problem::unusable(found.id, "1 to 4094").at(format!("{field}.id")))?,
        protocol: match wire::vlan::Protocol::try_from(found.protocol) {
            Ok(wire::vlan::Protocol::Cvlan) => VlanProtocol::Customer,
            Ok(wire::vlan::Protocol::Svlan) => VlanProtocol::Service,
            Err(_) => {
                return Err(Problem::unusable(found.protocol, "a known protocol").at(format!("{field}.protocol")));
            }
        },
    })
}

fn parse_address(field: &str, text: &str) -> Result<IpNet> {
    let expected = "an address of a machine with the length of its network's prefix, such as 192.0.2.10/24";
    let network: IpNet = text.parse().map_err(|_| Problem::unusable(text, expected).at(field))?;
    let address = network.addr();
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() || network.prefix_len() == 0 {
        return Err(Problem::unusable(text, expected).at(field));
    }
    // The first and the last address of an IPv4 network are not those of machines, save in networks of one or two.
    if let IpNet::V4(network) = network
        && network.prefix_len() < 31
        && (network.addr() == network.network() || network.addr() == network.broadcast())
    {
        return Err(Problem::unusable(text, expected).at(field));
    }
    Ok(network)
}

fn parse_route(field: &str, found: &wire::interface::Route) -> Result<Route> {
    let destination_field = format!("{field}.destination");
    let expected = "a network with the length of its prefix, such as 10.0.0.0/8 or 0.0.0.0/0";
    let destination: IpNet = (found.destination.parse())
        .map_err(|_| Problem::unusable(&found.destination, expected).at(&*destination_field))?;
    if destination.trunc() != destination {
        let expected = "a network: it has bits behind its prefix";
        return Err(Problem::unusable(&found.destination, expected).at(destination_field));
    }
    let partner = |name: &str, text: &str| {
        if text.is_empty() {
            return Ok(None);
        }
        let field = format!("{field}.{name}");
        let address = ip(&field, text)?;
        if address.is_ipv4() != destination.addr().is_ipv4() {
            return Err(Problem::unusable(text, "an address of the same IP version as the destination").at(field));
        }
        Ok(Some(address))
    };
    Ok(Route {
        destination,
        gateway: partner("gateway_ip", &found.gateway_ip)?,
        source: partner("source_ip", &found.source_ip)?,
        metric: Some(number(&format!("{field}.metric"), found.metric)?).filter(|metric| *metric > 0),
    })
}

fn ip(field: &str, text: &str) -> Result<IpAddr> {
    let expected = "the IP address of a machine";
    let address: IpAddr = text.parse().map_err(|_| Problem::unusable(text, expected).at(field))?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(Problem::unusable(text, expected).at(field));
    }
    Ok(address)
}

fn hardware_address(field: &str, text: &str) -> Result<HardwareAddress> {
    let expected = "the hardware address of a device: six pairs of hexadecimal digits, such as 52:54:00:00:00:01";
    let unusable = || Problem::unusable(text, expected).at(field);
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()));
        *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or_else(unusable)?;
    }
    // The lowest bit of the first byte marks groups.
    if parts.next().is_some() || bytes == [0; 6] || bytes[0] & 1 == 1 {
        return Err(unusable());
    }
    Ok(HardwareAddress(bytes))
}

fn name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Problem::Missing { what: NAME_RULE }.at(field));
    }
    let is_good = name.len() <= INTERFACE_NAME_LIMIT
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
        && !RESERVED_NAMES.contains(&name);
    if is_good { Ok(()) } else { Err(Problem::unusable(name, NAME_RULE).at(field)) }
}

fn number(field: &str, value: i32) -> Result<u32> {
    u32::try_from(value).map_err(|_| Problem::unusable(value, "a number that is not negative").at(field))
}

fn limit(field: &str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Problem::TooMany { found, limit }.at(field)) } else { Ok(()) }
}
