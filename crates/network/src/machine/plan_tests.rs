//! Plans, as text: what the machine has, what the configuration says, and what is to be done.

use std::net::IpAddr;

use ipnet::IpNet;
use polis_network_configuration::{HardwareAddress, NetworkConfiguration, VlanProtocol};
use polis_proto::osbase::net::proto::interface::{Route, Type};
use polis_proto::osbase::net::proto::{Bond, Device, IPv6Autoconfig, Interface, Net, Vlan, bond};

use super::kernel::{Kernel, KernelRoute, Link, LinkKind};
use super::plan::{Plan, plan, take_up_all};
use super::switches::Ipv6Switches;
use crate::choose::OwnAddress;

const DEFAULT_SWITCHES: Ipv6Switches = Ipv6Switches { accept_announcements: 1, temporary_addresses: 0 };

fn hardware(number: u8) -> HardwareAddress {
    HardwareAddress([2, 0, 0, 0, 0, number])
}

/// A device as the kernel has it at first: down, by its own name.
fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        kind: LinkKind::Device,
        hardware: Some(hardware(u8::try_from(index).unwrap())),
        permanent: None,
        driver: Some("virtio_net".to_owned()),
        is_up: false,
        has_carrier: false,
        controller: None,
        mtu: 1500,
        ipv6: Some(DEFAULT_SWITCHES),
    }
}

/// One that was configured.
fn configured(index: u32, name: &str) -> Link {
    Link { is_up: true, has_carrier: true, ipv6: Some(Ipv6Switches::of(None)), ..link(index, name) }
}

fn kernel(links: Vec<Link>) -> Kernel {
    Kernel { links, ..Kernel::default() }
}

fn own(interface: u32, network: &str) -> OwnAddress {
    let network: IpNet = network.parse().unwrap();
    OwnAddress {
        interface,
        address: network.addr(),
        prefix_length: network.prefix_len(),
        is_global: true,
        is_tentative: false,
        is_deprecated: false,
        is_secondary: false,
    }
}

fn device(name: &str, number: u8) -> Interface {
    let device = Device { hardware_address: hardware(number).to_string(), ..Device::default() };
    Interface { name: name.to_owned(), r#type: Some(Type::Device(device)), ..Interface::default() }
}

fn by_driver(name: &str, driver: &str, index: i32) -> Interface {
    let device = Device { driver: driver.to_owned(), index, ..Device::default() };
    Interface { name: name.to_owned(), r#type: Some(Type::Device(device)), ..Interface::default() }
}

fn vlan(name: &str, parent: &str, id: i32) -> Interface {
    let vlan = Vlan { parent: parent.to_owned(), id, protocol: 0 };
    Interface { name: name.to_owned(), r#type: Some(Type::Vlan(vlan)), ..Interface::default() }
}

fn bond(name: &str, members: &[&str]) -> Interface {
    let bond = Bond {
        member_interface: members.iter().map(|name| (*name).to_owned()).collect(),
        mode: Some(bond::Mode::ActiveBackup(bond::ActiveBackup {})),
        ..Bond::default()
    };
    Interface { name: name.to_owned(), r#type: Some(Type::Bond(bond)), ..Interface::default() }
}

fn with(mut interface: Interface, addresses: &[&str], routes: &[(&str, &str)]) -> Interface {
    interface.address = addresses.iter().map(|text| (*text).to_owned()).collect();
    let route = |(destination, gateway): &(&str, &str)| Route {
        destination: (*destination).to_owned(),
        gateway_ip: (*gateway).to_owned(),
        ..Route::default()
    };
    interface.route = routes.iter().map(route).collect();
    interface
}

fn plan_of(interfaces: Vec<Interface>, kernel: &Kernel) -> Plan {
    let net = Net { interface: interfaces, nameserver: Vec::new() };
    plan(&NetworkConfiguration::from_wire(&net).unwrap(), kernel)
}

#[track_caller]
fn check(interfaces: Vec<Interface>, kernel: &Kernel, expected: &[&str]) -> Plan {
    let plan = plan_of(interfaces, kernel);
    let found: Vec<String> = plan.operations.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
    plan
}

#[test]
fn a_device_gets_its_name_and_all_else() {
    let interfaces =
        || vec![with(device("uplink", 2), &["192.0.2.10/24"], &[("0.0.0.0/0", "192.0.2.1"), ("fd00::/8", "fe80::1")])];
    check(
        interfaces(),
        &kernel(vec![link(1, "eth0"), link(2, "eth1")]),
        &[
            "rename eth1 to uplink",
            "set IPv6 of uplink to accept_ra=0 use_tempaddr=0",
            "take uplink up",
            "give uplink the address 192.0.2.10/24",
            "give uplink the route to 0.0.0.0/0 via 192.0.2.1",
            "give uplink the route to fd00::/8 via fe80::1",
        ],
    );
    // One that is up already has to be down for that.
    check(
        interfaces(),
        &kernel(vec![Link { is_up: true, ..link(2, "eth1") }]),
        &[
            "take eth1 down",
            "rename eth1 to uplink",
            "set IPv6 of uplink to accept_ra=0 use_tempaddr=0",
            "take uplink up",
            "give uplink the address 192.0.2.10/24",
            "give uplink the route to 0.0.0.0/0 via 192.0.2.1",
            "give uplink the route to fd00::/8 via fe80::1",
        ],
    );
    // What is there is not done again. The kernel gives IPv6 routes a metric.
    let route = |destination: &str, gateway: &str, metric| KernelRoute {
        destination: destination.parse().unwrap(),
        interface: Some(2),
        gateway: Some(gateway.parse::<IpAddr>().unwrap()),
        source: None,
        metric,
    };
    let all = Kernel {
        links: vec![configured(2, "uplink")],
        addresses: vec![own(2, "192.0.2.10/24")],
        routes: vec![route("0.0.0.0/0", "192.0.2.1", 0), route("fd00::/8", "fe80::1", 1024)],
    };
    check(interfaces(), &all, &[]);
    // Another address, another network, and another route do not count for it, and stay.
    let mut other = all.clone();
    other.addresses = vec![own(2, "192.0.2.10/25"), own(2, "192.0.2.11/24"), own(1, "192.0.2.10/24")];
    other.routes[0].metric = 5;
    check(
        interfaces(),
        &other,
        &["give uplink the address 192.0.2.10/24", "give uplink the route to 0.0.0.0/0 via 192.0.2.1"],
    );
}

#[test]
fn devices_are_found_by_what_they_were_made_with_or_by_their_driver() {
    // A member of a bond shows the address of the bond.
    let member = Link { hardware: Some(hardware(9)), permanent: Some(hardware(1)), ..configured(1, "a") };
    check(vec![device("a", 1)], &kernel(vec![member.clone(), configured(9, "b")]), &[]);
    check(vec![device("b", 9)], &kernel(vec![member, configured(9, "b")]), &[]);
    // What is built on a device has its address, and is none.
    let built =
        Link { kind: LinkKind::Vlan { parent: 1, id: 5, protocol: VlanProtocol::Customer }, ..configured(1, "v") };
    assert_eq!(plan_of(vec![device("a", 1)], &kernel(vec![built])).missing.len(), 1);

    let other = Link { driver: Some("igb".to_owned()), ..configured(2, "second") };
    let all = kernel(vec![configured(1, "first"), other, configured(3, "third")]);
    check(vec![by_driver("third", "virtio_net", 1), by_driver("second", "igb", 0)], &all, &[]);
    let plan = check(vec![by_driver("x", "virtio_net", 2), by_driver("second", "igb", 0)], &all, &[]);
    assert_eq!(plan.missing.len(), 1);
    assert_eq!(plan.missing[0].device.to_string(), "driver virtio_net, number 3 of those");
}

#[test]
fn names_are_swapped_by_way_of_a_third_one() {
    check(
        vec![device("a", 2), device("b", 1)],
        &kernel(vec![configured(1, "a"), configured(2, "b")]),
        &[
            "take a down",
            "rename a to aside1",
            "take aside1 up",
            "take b down",
            "rename b to a",
            "take a up",
            "take aside1 down",
            "rename aside1 to b",
            "take b up",
        ],
    );
    // A name that something else has stays with it.
    let bridge = Link { kind: LinkKind::Other, ..configured(1, "a") };
    let plan = check(vec![device("a", 2)], &kernel(vec![bridge, configured(2, "b")]), &[]);
    assert_eq!(plan.conflicts, ["a is the name of an interface that is no device"]);
}

#[test]
fn bonds_and_vlans_come_behind_what_they_stand_on() {
    let interfaces = || {
        vec![
            with(vlan("tagged", "pair", 7), &["10.7.0.5/24"], &[]),
            with(bond("pair", &["one", "two"]), &["10.1.0.5/24"], &[]),
            device("one", 1),
            device("two", 2),
        ]
    };
    check(
        interfaces(),
        &kernel(vec![link(1, "one"), Link { is_up: true, ..link(2, "eth1") }]),
        &[
            "take eth1 down",
            "rename eth1 to two",
            "make pair, a bond of one and two with 02:00:00:00:00:01",
            "make one a member of pair",
            "take one up",
            "make two a member of pair",
            "take two up",
            "set IPv6 of pair to accept_ra=0 use_tempaddr=0",
            "take pair up",
            "give pair the address 10.1.0.5/24",
            "make tagged, VLAN 7 on pair",
            "set IPv6 of tagged to accept_ra=0 use_tempaddr=0",
            "take tagged up",
            "give tagged the address 10.7.0.5/24",
        ],
    );
    let member = |index, name| Link { controller: Some(10), ..configured(index, name) };
    let pair = Link { kind: LinkKind::Bond, ..configured(10, "pair") };
    let tagged = Link {
        kind: LinkKind::Vlan { parent: 10, id: 7, protocol: VlanProtocol::Customer },
        ..configured(11, "tagged")
    };
    let all = Kernel {
        links: vec![member(1, "one"), member(2, "two"), pair.clone(), tagged.clone()],
        addresses: vec![own(10, "10.1.0.5/24"), own(11, "10.7.0.5/24")],
        routes: Vec::new(),
    };
    check(interfaces(), &all, &[]);
    // A member that comes later joins.
    let mut late = all.clone();
    late.links[1] = Link { is_up: true, ..link(2, "two") };
    check(interfaces(), &late, &["take two down", "make two a member of pair", "take two up"]);
    // One is missing: the bond works with the other. Both: nothing of it can be made.
    let mut one = all.clone();
    one.links.remove(1);
    assert_eq!(check(interfaces(), &one, &[]).missing.len(), 1);
    assert_eq!(check(interfaces(), &kernel(vec![]), &[]).missing.len(), 2);
    // Another VLAN of that name, and something that is no bond.
    let mut other = all.clone();
    other.links[3].kind = LinkKind::Vlan { parent: 10, id: 8, protocol: VlanProtocol::Customer };
    let conflicts = check(interfaces(), &other, &[]).conflicts;
    assert_eq!(conflicts, ["tagged is the name of an interface that is not this VLAN"]);
    let mut other = all;
    other.links[2].kind = LinkKind::Other;
    assert_eq!(plan_of(interfaces(), &other).conflicts, ["pair is the name of an interface that is no bond"]);
}

#[test]
fn packet_sizes_and_what_routers_announce() {
    let mut interface = device("one", 1);
    interface.mtu = 9000;
    interface.ipv6_autoconfig = Some(IPv6Autoconfig { privacy: 2 });
    check(
        vec![interface.clone()],
        &kernel(vec![configured(1, "one")]),
        &["set the MTU of one to 9000", "set IPv6 of one to accept_ra=2 use_tempaddr=2"],
    );
    let done = Link {
        mtu: 9000,
        ipv6: Some(Ipv6Switches { accept_announcements: 2, temporary_addresses: 2 }),
        ..configured(1, "one")
    };
    check(vec![interface.clone()], &kernel(vec![done.clone()]), &[]);
    // A kernel without IPv6 has no switches.
    check(vec![interface], &kernel(vec![Link { ipv6: None, ..done }]), &[]);
}

#[test]
fn without_a_configuration_every_free_device_is_taken_up() {
    let bridge = Link { kind: LinkKind::Other, ..link(3, "bridge") };
    let port = Link { controller: Some(3), ..link(4, "port") };
    let all = kernel(vec![link(1, "a"), configured(2, "b"), bridge, port, link(5, "c")]);
    let found: Vec<String> = take_up_all(&all).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["take a up", "take c up"]);
}

/// Whatever the machine has and the configuration says, no plan has an operation on an interface that is not there by then.
#[test]
fn every_operation_has_its_interface() {
    use super::plan::Step;
    use proptest::prelude::*;

    let names = ["a", "b", "c", "d"];
    let links = proptest::collection::vec((0_usize..4, any::<bool>()), 0..4);
    let wanted = proptest::sample::subsequence((0_u8..4).collect::<Vec<_>>(), 1..4).prop_shuffle();
    proptest!(|(links in links, wanted in wanted, with_bond in any::<bool>())| {
        let mut present: Vec<Link> = Vec::new();
        for (number, (name, is_up)) in links.iter().enumerate() {
            if present.iter().all(|other| other.name != names[*name]) {
                let index = u32::try_from(number).unwrap() + 1;
                present.push(Link { is_up: *is_up, ..link(index, names[*name]) });
            }
        }
        let mut interfaces: Vec<Interface> =
            wanted.iter().enumerate().map(|(number, device_number)| device(names[number], *device_number)).collect();
        if with_bond {
            interfaces.push(bond("bond", &[names[0]]));
            interfaces.push(vlan("vlan", "bond", 3));
        }
        let kernel = kernel(present);
        let plan = plan_of(interfaces, &kernel);
        let mut names: Vec<(String, bool)> = kernel.links.iter().map(|link| (link.name.clone(), link.is_up)).collect();
        for operation in &plan.operations {
            let has = |name: &str| names.iter().position(|(other, _)| other == name);
            let own = has(&operation.interface);
            match &operation.step {
                Step::AddBond { .. } => {
                    prop_assert_eq!(own, None);
                    names.push((operation.interface.clone(), false));
                }
                Step::AddVlan { vlan } => {
                    prop_assert!(own.is_none() && has(&vlan.parent).is_some());
                    names.push((operation.interface.clone(), false));
                }
                Step::Rename { to } => {
                    prop_assert!(has(to).is_none());
                    let own = own.unwrap();
                    prop_assert!(!names[own].1, "{} is down", operation.interface);
                    names[own].0.clone_from(to);
                }
                Step::Join { bond } => {
                    prop_assert!(has(bond).is_some());
                    prop_assert!(!names[own.unwrap()].1, "{} is down", operation.interface);
                }
                Step::Up => names[own.unwrap()].1 = true,
                Step::Down => names[own.unwrap()].1 = false,
                Step::SetMtu { .. } | Step::SetIpv6 { .. } | Step::AddAddress { .. } | Step::AddRoute { .. } => {
                    prop_assert!(own.is_some());
                }
            }
        }
        for (name, _) in names.iter().filter(|(name, _)| plan.operations.iter().any(|other| other.interface == *name)) {
            prop_assert!(names.iter().find(|(other, _)| other == name).unwrap().1, "{name} is up in the end");
        }
    });
}
