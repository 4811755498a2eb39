//! What the kernel has: links, addresses and routes, as one value.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use polis_network_configuration::{HardwareAddress, VlanProtocol};
use rtnetlink::packet_route::link::{
    InfoBondPort, InfoData, InfoKind, InfoPortData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType,
    LinkMessage, VlanProtocol as KernelVlanProtocol,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, route::RouteAddress};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::switches::{self, Ipv6Switches};
use crate::choose::OwnAddress;
use crate::netlink::{Netlink, NetworkError};

/// What the kernel has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// Ordered by their numbers.
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<OwnAddress>,
    /// Of the main table.
    pub(crate) routes: Vec<KernelRoute>,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) kind: LinkKind,
    /// As it is now; absent: it has none, or not one of Ethernet.
    pub(crate) hardware: Option<HardwareAddress>,
    /// As it was made with, if that is known to be another one.
    pub(crate) permanent: Option<HardwareAddress>,
    /// Name of the kernel's driver.
    pub(crate) driver: Option<String>,
    pub(crate) is_up: bool,
    pub(crate) has_carrier: bool,
    /// The bond or bridge that it belongs to.
    pub(crate) controller: Option<u32>,
    pub(crate) mtu: u32,
    /// How it treats what routers announce; absent when the kernel has no IPv6, or does not know the interface by this name.
    pub(crate) ipv6: Option<Ipv6Switches>,
}

/// What an interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// An Ethernet device: hardware, or the inner end of a virtual cable, which is what a machine in a container has.
    Device,
    Bond,
    Vlan {
        /// Number of the interface below.
        parent: u32,
        id: u16,
        protocol: VlanProtocol,
    },
    /// Anything else.
    Other,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelRoute {
    pub(crate) destination: IpNet,
    pub(crate) interface: Option<u32>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) metric: u32,
}

impl Kernel {
    /// Asks the kernel.
    pub(crate) async fn look(netlink: &Netlink) -> Result<Self, NetworkError> {
        let addresses = netlink.addresses().await?;
        let mut links = links(netlink.handle()).await?;
        links.sort_by_key(|link| link.index);
        Ok(Self { links, addresses, routes: routes(netlink.handle()).await? })
    }

    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Whether an interface has an address with exactly this network.
    pub(crate) fn has_address(&self, index: u32, wanted: IpNet) -> bool {
        self.addresses.iter().any(|own| {
            own.interface == index && own.address == wanted.addr() && own.prefix_length == wanted.prefix_len()
        })
    }
}

impl Link {
    /// The hardware address that it was made with.
    pub(crate) fn made_with(&self) -> Option<HardwareAddress> {
        self.permanent.or(self.hardware)
    }

    /// Whether it is a device that nobody has made part of something else.
    pub(crate) fn is_free_device(&self) -> bool {
        self.kind == LinkKind::Device && self.controller.is_none()
    }
}

async fn links(handle: &Handle) -> Result<Vec<Link>, NetworkError> {
    let mut found = Vec::new();
    let mut answers = std::pin::pin!(handle.link().get().execute());
    while let Some(link) =
        answers.try_next().await.map_err(|source| NetworkError::Query { what: "interfaces", source })?
    {
        found.extend(read_link(&link));
    }
    Ok(found)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of a link's many attributes only those matter that are named")]
fn read_link(message: &LinkMessage) -> Option<Link> {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: LinkKind::Other,
        hardware: None,
        permanent: None,
        driver: None,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        controller: None,
        mtu: 0,
        ipv6: None,
    };
    let mut below = 0;
    let mut info = &[][..];
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(address) => link.hardware = hardware(address),
            LinkAttribute::PermAddress(address) => link.permanent = hardware(address),
            LinkAttribute::Controller(0) => {}
            LinkAttribute::Controller(number) => link.controller = Some(*number),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(number) => below = *number,
            LinkAttribute::LinkInfo(found) => info = found,
            _ => {}
        }
    }
    if link.name.is_empty() {
        return None;
    }
    let is_ethernet = message.header.link_layer_type == LinkLayerType::Ether && !flags.contains(LinkFlags::Loopback);
    if is_ethernet {
        // Hardware has no kind.
        link.kind = LinkKind::Device;
    }
    let mut vlan = (0, VlanProtocol::Customer);
    for item in info {
        match item {
            LinkInfo::Kind(kind) => {
                link.driver = Some(kind.to_string());
                link.kind = match kind {
                    InfoKind::Veth if is_ethernet => LinkKind::Device,
                    InfoKind::Bond => LinkKind::Bond,
                    InfoKind::Vlan => LinkKind::Vlan { parent: below, id: 0, protocol: VlanProtocol::Customer },
                    _ => LinkKind::Other,
                };
            }
            LinkInfo::Data(InfoData::Vlan(items)) => vlan = read_vlan(items),
            LinkInfo::PortData(InfoPortData::BondPort(items)) => {
                let original = items.iter().find_map(|item| match item {
                    InfoBondPort::PermHwaddr(address) => hardware(address),
                    _ => None,
                });
                link.permanent = link.permanent.or(original);
            }
            _ => {}
        }
    }
    if let LinkKind::Vlan { id, protocol, .. } = &mut link.kind {
        (*id, *protocol) = vlan;
    }
    link.driver = driver(&link.name).or(link.driver);
    link.ipv6 = switches::read(&link.name);
    Some(link)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of a VLAN's attributes only those matter that are named")]
fn read_vlan(items: &[InfoVlan]) -> (u16, VlanProtocol) {
    let mut vlan = (0, VlanProtocol::Customer);
    for item in items {
        match item {
            InfoVlan::Id(id) => vlan.0 = *id,
            InfoVlan::Protocol(KernelVlanProtocol::Ieee8021Ad) => vlan.1 = VlanProtocol::Service,
            _ => {}
        }
    }
    vlan
}

fn hardware(bytes: &[u8]) -> Option<HardwareAddress> {
    let address = HardwareAddress(bytes.try_into().ok()?);
    (address.0 != [0; 6]).then_some(address)
}

/// Name of the driver of a hardware device.
fn driver(name: &str) -> Option<String> {
    let path = std::fs::read_link(format!("/sys/class/net/{name}/device/driver")).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

async fn routes(handle: &Handle) -> Result<Vec<KernelRoute>, NetworkError> {
    let families = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    let mut found = Vec::new();
    for family in families {
        let mut answers = std::pin::pin!(handle.route().get(family).execute());
        while let Some(route) =
            answers.try_next().await.map_err(|source| NetworkError::Query { what: "routes", source })?
        {
            found.extend(read_route(&route));
        }
    }
    Ok(found)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of a route's many attributes only those matter that are named")]
fn read_route(message: &RouteMessage) -> Option<KernelRoute> {
    let header = &message.header;
    let everywhere: IpAddr = match header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut table = u32::from(header.table);
    let mut destination = everywhere;
    let mut route = KernelRoute {
        destination: IpNet::new(everywhere, 0).ok()?,
        interface: None,
        gateway: None,
        source: None,
        metric: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(found) => destination = address(found)?,
            RouteAttribute::Oif(number) => route.interface = Some(*number),
            RouteAttribute::Gateway(found) => route.gateway = address(found),
            RouteAttribute::PrefSource(found) => route.source = address(found),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, header.destination_prefix_length).ok()?;
    let is_of_interest = header.kind == RouteType::Unicast && table == u32::from(RouteHeader::RT_TABLE_MAIN);
    is_of_interest.then_some(route)
}

fn address(found: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(address) = found {
        Some(IpAddr::V4(*address))
    } else if let RouteAddress::Inet6(address) = found {
        Some(IpAddr::V6(*address))
    } else {
        None
    }
}
