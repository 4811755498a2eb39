//! Carries out a plan by netlink.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures::TryStreamExt as _;
use polis_network_configuration::{
    Bond, BondMode, HardwareAddress, LacpRate, LacpSelection, Route, TransmitHash, Vlan, VlanProtocol,
};
use rtnetlink::packet_route::link::{
    BondAdSelect, BondLacpRate, BondMode as KernelBondMode, BondXmitHashPolicy, LinkMessage,
    VlanProtocol as KernelVlanProtocol,
};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::{Handle, LinkBond, LinkMessageBuilder, LinkUnspec, LinkVlan, RouteMessageBuilder};

use super::plan::{Operation, Step};
use super::switches;

/// An operation that the kernel has refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub(crate) struct Refusal {
    /// What was to be done.
    operation: Operation,
    /// Why it could not be.
    #[source]
    source: io::Error,
}

impl Refusal {
    /// The whole of it, for a condition.
    pub(crate) fn in_words(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

/// Carries out the operations in their order. What stands on one that was refused is left out, all else is done.
pub(crate) async fn execute(handle: &Handle, operations: &[Operation]) -> Vec<Refusal> {
    let mut refusals: Vec<Refusal> = Vec::new();
    let mut broken: BTreeSet<&str> = BTreeSet::new();
    for operation in operations {
        let name = &*operation.interface;
        let stands_on = match &operation.step {
            Step::AddVlan { vlan } => Some(&*vlan.parent),
            Step::Join { bond } => Some(&**bond),
            Step::Rename { .. }
            | Step::AddBond { .. }
            | Step::Down
            | Step::Up
            | Step::SetMtu { .. }
            | Step::SetIpv6 { .. }
            | Step::AddAddress { .. }
            | Step::AddRoute { .. } => None,
        };
        if broken.contains(name) || stands_on.is_some_and(|below| broken.contains(below)) {
            broken.insert(name);
            continue;
        }
        match carry_out(handle, operation).await {
            Ok(()) => tracing::info!("network: {operation}"),
            // A condition tells of it, also when it is tried again and again.
            Err(source) => {
                broken.insert(name);
                if let Step::Rename { to } = &operation.step {
                    broken.insert(to);
                }
                refusals.push(Refusal { operation: operation.clone(), source });
            }
        }
    }
    refusals
}

async fn carry_out(handle: &Handle, Operation { interface, step }: &Operation) -> io::Result<()> {
    let links = handle.link();
    let named = |message: LinkMessageBuilder<LinkUnspec>| message.build();
    match step {
        Step::Rename { to } => {
            let index = index_of(handle, interface).await?;
            let message = named(LinkUnspec::new_with_index(index).name(to));
            links.set(message).execute().await.map_err(to_io)
        }
        Step::AddBond { bond, hardware } => {
            links.add(bond_message(interface, bond, *hardware)).execute().await.map_err(to_io)
        }
        Step::AddVlan { vlan } => {
            let parent = index_of(handle, &vlan.parent).await?;
            links.add(vlan_message(interface, vlan, parent)).execute().await.map_err(to_io)
        }
        Step::Join { bond } => {
            let (index, bond) = (index_of(handle, interface).await?, index_of(handle, bond).await?);
            let message = named(LinkUnspec::new_with_index(index).controller(bond));
            links.set(message).execute().await.map_err(to_io)
        }
        Step::Down | Step::Up => {
            let link = LinkUnspec::new_with_index(index_of(handle, interface).await?);
            let link = if *step == Step::Up { link.up() } else { link.down() };
            links.set(named(link)).execute().await.map_err(to_io)
        }
        Step::SetMtu { mtu } => {
            let index = index_of(handle, interface).await?;
            links.set(named(LinkUnspec::new_with_index(index).mtu(*mtu))).execute().await.map_err(to_io)
        }
        Step::SetIpv6 { switches } => switches::write(interface, *switches),
        Step::AddAddress { address } => {
            let index = index_of(handle, interface).await?;
            handle.address().add(index, address.addr(), address.prefix_len()).execute().await.map_err(to_io)
        }
        Step::AddRoute { route } => {
            let index = index_of(handle, interface).await?;
            handle.route().add(route_message(route, index)?).execute().await.map_err(to_io)
        }
    }
}

/// Number of the interface of this name.
async fn index_of(handle: &Handle, name: &str) -> io::Result<u32> {
    let mut answers = std::pin::pin!(handle.link().get().match_name(name).execute());
    let link = answers.try_next().await.map_err(to_io)?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}"));
    link.map(|link| link.header.index).ok_or_else(missing)
}

/// The kernel's refusal as an error of the system.
#[expect(clippy::wildcard_enum_match_arm, reason = "what is not a refusal of the kernel is told as it is")]
pub(crate) fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(refusal) => refusal.to_io(),
        other => io::Error::other(other),
    }
}

fn bond_message(name: &str, bond: &Bond, hardware: Option<HardwareAddress>) -> LinkMessage {
    let monitor = &bond.carrier_monitor;
    let hash = match bond.transmit_hash {
        TransmitHash::Layer2 => BondXmitHashPolicy::Layer2,
        TransmitHash::Layer34 => BondXmitHashPolicy::Layer34,
        TransmitHash::Layer23 => BondXmitHashPolicy::Layer23,
        TransmitHash::EncapsulatedLayer23 => BondXmitHashPolicy::Encap23,
        TransmitHash::EncapsulatedLayer34 => BondXmitHashPolicy::Encap34,
        TransmitHash::VlanSourceAddress => BondXmitHashPolicy::VlanSrcMac,
    };
    // The kernel takes most of these only behind the mode, and in this order.
    let mut message = LinkBond::new(name);
    message = match &bond.mode {
        BondMode::ActiveBackup => message.mode(KernelBondMode::ActiveBackup),
        BondMode::Lacp { .. } => message.mode(KernelBondMode::Ieee8023Ad).xmit_hash_policy(hash),
    };
    message = message.miimon(monitor.polling_interval_ms).use_carrier(!monitor.force_polling);
    if monitor.down_delay_ms > 0 {
        message = message.downdelay(monitor.down_delay_ms);
    }
    if monitor.up_delay_ms > 0 {
        message = message.updelay(monitor.up_delay_ms);
    }
    if let Some(links) = bond.min_links {
        message = message.min_links(links);
    }
    if let BondMode::Lacp { rate, selection, actor_system_priority, user_port_key, actor_system } = &bond.mode {
        message = message.ad_lacp_rate(match rate {
            LacpRate::Slow => BondLacpRate::Slow,
            LacpRate::Fast => BondLacpRate::Fast,
        });
        message = message.ad_select(match selection {
            LacpSelection::Stable => BondAdSelect::Stable,
            LacpSelection::Bandwidth => BondAdSelect::Bandwidth,
            LacpSelection::Count => BondAdSelect::Count,
        });
        if let Some(priority) = actor_system_priority {
            message = message.ad_actor_sys_prio(*priority);
        }
        if let Some(key) = user_port_key {
            message = message.ad_user_port_key(*key);
        }
        if let Some(HardwareAddress(address)) = actor_system {
            message = message.ad_actor_system(*address);
        }
    }
    if let Some(HardwareAddress(address)) = hardware {
        message = message.address(address.to_vec());
    }
    message.build()
}

fn vlan_message(name: &str, vlan: &Vlan, parent: u32) -> LinkMessage {
    let protocol = match vlan.protocol {
        VlanProtocol::Customer => KernelVlanProtocol::Ieee8021Q,
        VlanProtocol::Service => KernelVlanProtocol::Ieee8021Ad,
    };
    LinkVlan::new(name, parent, vlan.id).protocol(protocol).build()
}

fn route_message(route: &Route, interface: u32) -> io::Result<RouteMessage> {
    let mut message = RouteMessageBuilder::<IpAddr>::new().output_interface(interface);
    let mixed = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    message = message.destination_prefix(route.destination.addr(), route.destination.prefix_len()).map_err(mixed)?;
    if let Some(gateway) = route.gateway {
        message = message.gateway(gateway).map_err(mixed)?;
    } else if route.destination.addr().is_ipv4() {
        // What is reached without a router is on the link.
        message = message.scope(rtnetlink::packet_route::route::RouteScope::Link);
    }
    if let Some(source) = route.source {
        message = message.pref_source(source).map_err(mixed)?;
    }
    if let Some(metric) = route.metric {
        message = message.priority(metric);
    }
    Ok(message.build())
}
