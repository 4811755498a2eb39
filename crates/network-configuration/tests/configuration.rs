//! What a configuration may say, and what is said about one that may not.

use std::error::Error as _;

use polis_network_configuration::{
    BondMode, CarrierMonitor, ConfigurationError, DeviceMatch, InterfaceKind, Ipv6Privacy, LacpRate, LacpSelection,
    MAX_ENTRIES, MAX_INTERFACES, NetworkConfiguration, TransmitHash, VlanProtocol,
};
use polis_proto::osbase::net::proto::interface::{Route, Type};
use polis_proto::osbase::net::proto::{
    Bond, Device, IPv4Autoconfig, IPv6Autoconfig, Interface, Nameserver, Net, Vlan, bond,
};
use prost::Message as _;

fn device(name: &str, address: &str) -> Interface {
    let device = Device { hardware_address: address.to_owned(), ..Device::default() };
    Interface { name: name.to_owned(), r#type: Some(Type::Device(device)), ..Interface::default() }
}

fn one() -> Interface {
    device("one", "02:00:00:00:00:01")
}

fn two() -> Interface {
    device("two", "02:00:00:00:00:02")
}

fn vlan(name: &str, parent: &str, id: i32) -> Interface {
    let vlan = Vlan { parent: parent.to_owned(), id, protocol: 0 };
    Interface { name: name.to_owned(), r#type: Some(Type::Vlan(vlan)), ..Interface::default() }
}

fn bond(members: &[&str], change: impl FnOnce(&mut Bond)) -> Interface {
    let mut bond = Bond {
        member_interface: members.iter().map(|name| (*name).to_owned()).collect(),
        mode: Some(bond::Mode::ActiveBackup(bond::ActiveBackup {})),
        ..Bond::default()
    };
    change(&mut bond);
    Interface { name: "bond".to_owned(), r#type: Some(Type::Bond(bond)), ..Interface::default() }
}

fn lacp(change: impl FnOnce(&mut bond::Lacp)) -> Interface {
    let mut lacp = bond::Lacp::default();
    change(&mut lacp);
    bond(&["one"], |bond| bond.mode = Some(bond::Mode::Lacp(lacp)))
}

fn parse(interface: Vec<Interface>) -> Result<NetworkConfiguration, ConfigurationError> {
    NetworkConfiguration::from_wire(&Net { interface, nameserver: Vec::new() })
}

/// One interface with something changed.
fn changed(change: impl FnOnce(&mut Interface)) -> Vec<Interface> {
    let mut interface = one();
    change(&mut interface);
    vec![interface]
}

fn with_route(destination: &str, gateway: &str, source: &str, metric: i32) -> Vec<Interface> {
    let route = Route {
        destination: destination.to_owned(),
        gateway_ip: gateway.to_owned(),
        source_ip: source.to_owned(),
        metric,
    };
    changed(|interface| interface.route = vec![route])
}

fn with_address(text: &str) -> Vec<Interface> {
    changed(|interface| interface.address = vec!["10.0.0.1/8".to_owned(), text.to_owned()])
}

#[test]
fn a_configuration_says_what_it_says() {
    let mut pair = bond(&["one", "two"], |bond| {
        bond.min_links = 1;
        bond.transmit_hash_policy = 1;
        bond.link_monitor = Some(bond::LinkMonitor::CarrierMonitor(bond::CarrierMonitor {
            polling_interval_ms: 50,
            force_polling: true,
            down_delay_ms: 100,
            up_delay_ms: 200,
        }));
        bond.mode = Some(bond::Mode::Lacp(bond::Lacp {
            rate: 1,
            selection_logic: 2,
            actor_system_priority: 100,
            user_port_key: 7,
            actor_system_mac: "02:00:00:00:00:0a".to_owned(),
        }));
    });
    pair.mtu = 9000;
    let mut tagged = vlan("tagged", "bond", 4094);
    tagged.ipv4_autoconfig = Some(IPv4Autoconfig {});
    tagged.ipv6_autoconfig = Some(IPv6Autoconfig { privacy: 1 });
    tagged.address = vec!["fd00::5/64".to_owned(), "10.0.0.1/31".to_owned(), "10.0.0.4/32".to_owned()];
    tagged.route = with_route("fd00:1::/64", "fe80::1", "fd00::5", 7)[0].route.clone();
    let nameserver = vec![Nameserver { ip: "192.0.2.53".to_owned() }];
    let mut second = device("second", "02:00:00:00:00:03");
    second.address = vec!["10.9.0.1/24".to_owned()];
    let net = Net { interface: vec![tagged, pair, two(), one(), second], nameserver };
    let configuration = NetworkConfiguration::from_wire(&net).unwrap();

    let names: Vec<&str> = configuration.interfaces().iter().map(|interface| &*interface.name).collect();
    assert_eq!(names, ["two", "one", "bond", "tagged", "second"], "each behind what it is built on");
    let addresses: Vec<_> = configuration.addresses().map(|(interface, _)| &*interface.name).collect();
    assert_eq!(addresses, ["tagged", "tagged", "tagged", "second"], "as they were given");
    assert!(configuration.uses_dhcp());
    assert_eq!(configuration.nameservers(), ["192.0.2.53".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(configuration.bond_of("one").map(|bond| &*bond.name), Some("bond"));
    assert_eq!(configuration.bond_of("bond"), None);
    assert_eq!(NetworkConfiguration::parse(configuration.as_bytes()).unwrap(), configuration);

    let [_, one, pair, tagged, _] = configuration.interfaces() else { panic!("{names:?}") };
    let InterfaceKind::Device(device) = &one.kind else { panic!("{one:?}") };
    assert_eq!(device.to_string(), "hardware address 02:00:00:00:00:01");
    assert_eq!(pair.mtu, Some(9000));
    let InterfaceKind::Bond(bond) = &pair.kind else { panic!("{pair:?}") };
    assert_eq!((bond.min_links, bond.transmit_hash), (Some(1), TransmitHash::Layer34));
    let monitor = CarrierMonitor { polling_interval_ms: 50, force_polling: true, down_delay_ms: 100, up_delay_ms: 200 };
    assert_eq!(bond.carrier_monitor, monitor);
    let BondMode::Lacp { rate, selection, actor_system_priority, user_port_key, actor_system } = &bond.mode else {
        panic!("{bond:?}")
    };
    assert_eq!((rate, selection), (&LacpRate::Fast, &LacpSelection::Count));
    assert_eq!((*actor_system_priority, *user_port_key), (Some(100), Some(7)));
    assert_eq!(actor_system.unwrap().to_string(), "02:00:00:00:00:0a");
    let InterfaceKind::Vlan(vlan) = &tagged.kind else { panic!("{tagged:?}") };
    assert_eq!((&*vlan.parent, vlan.id, vlan.protocol), ("bond", 4094, VlanProtocol::Customer));
    assert_eq!(tagged.ipv6_autoconfig, Some(Ipv6Privacy::Avoid));
    let addresses: Vec<String> = tagged.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["fd00::5/64", "10.0.0.1/31", "10.0.0.4/32"]);
    assert_eq!(tagged.routes[0].metric, Some(7));
}

#[test]
fn what_is_left_out_is_the_default() {
    let configuration = parse(vec![one(), bond(&["one"], |_| ())]).unwrap();
    let [one, pair] = configuration.interfaces() else { panic!("{configuration:?}") };
    assert_eq!((one.mtu, one.ipv4_autoconfig, one.ipv6_autoconfig), (None, false, None));
    assert!(!configuration.uses_dhcp());
    let InterfaceKind::Bond(bond) = &pair.kind else { panic!("{pair:?}") };
    assert_eq!((bond.min_links, &bond.mode), (None, &BondMode::ActiveBackup));
    // A bond that never looks at its links would be useless.
    assert_eq!(bond.carrier_monitor.polling_interval_ms, 100);
    let driver = Device { driver: "igb".to_owned(), index: 1, ..Device::default() };
    let configuration = parse(changed(|interface| interface.r#type = Some(Type::Device(driver)))).unwrap();
    let InterfaceKind::Device(device) = &configuration.interfaces()[0].kind else { panic!("{configuration:?}") };
    assert_eq!(device.found_by, DeviceMatch::Driver("igb".to_owned()));
    assert_eq!(device.to_string(), "driver igb, number 2 of those");
}

#[test]
fn every_bad_field_is_named() {
    let with_device = |change: fn(&mut Device)| {
        let mut device = Device { hardware_address: "02:00:00:00:00:01".to_owned(), ..Device::default() };
        change(&mut device);
        changed(|interface| interface.r#type = Some(Type::Device(device)))
    };
    let named = |name: &str| changed(|interface| interface.name = name.to_owned());
    let behind_one = |interface: Interface| vec![one(), interface];
    let name_rule = "a name of an interface: 1 to 15 printable ASCII characters without blanks, `/`, `:` and `%`";
    let hardware =
        "which is not the hardware address of a device: six pairs of hexadecimal digits, such as 52:54:00:00:00:01";
    let machine = "which is not an address of a machine with the length of its network's prefix, such as 192.0.2.10/24";
    let network = "which is not a network with the length of its prefix, such as 10.0.0.0/8 or 0.0.0.0/0";
    let mut member = one();
    member.address = vec!["10.0.0.1/8".to_owned()];
    let mut second_bond = bond(&["one"], |_| ());
    second_bond.name = "again".to_owned();
    second_bond.mtu = 1500;
    let table: Vec<(Vec<Interface>, String)> = vec![
        (vec![], "interface is missing; give at least one interface".into()),
        (vec![one(); MAX_INTERFACES + 1], "interface has 257 entries; there may be 256".into()),
        (named(""), format!("interface[0].name is missing; give {name_rule}")),
        (named("sixteen-letters-"), format!("interface[0].name is \"sixteen-letters-\", which is not {name_rule}")),
        (named("a b"), format!("interface[0].name is \"a b\", which is not {name_rule}")),
        (named("a/b"), format!("interface[0].name is \"a/b\", which is not {name_rule}")),
        (named(".."), format!("interface[0].name is \"..\", which is not {name_rule}")),
        (named("lo"), format!("interface[0].name is \"lo\", which is not {name_rule}")),
        (named("ü"), format!("interface[0].name is \"ü\", which is not {name_rule}")),
        (changed(|one| one.r#type = None), "interface[0].type is missing; give one of device, bond and vlan".into()),
        (changed(|one| one.mtu = 67), "interface[0].mtu is \"67\", which is not 0 for the kernel's default, or 68 to 65535 bytes".into()),
        (changed(|one| one.mtu = -1), "interface[0].mtu is \"-1\", which is not 0 for the kernel's default, or 68 to 65535 bytes".into()),
        (
            changed(|one| one.ipv6_autoconfig = Some(IPv6Autoconfig { privacy: 9 })),
            "interface[0].ipv6_autoconfig.privacy is \"9\", which is not a known choice".into(),
        ),
        (changed(|one| one.address = vec![String::new(); MAX_ENTRIES + 1]), "interface[0].address has 257 entries; there may be 256".into()),
        (changed(|one| one.route = vec![Route::default(); MAX_ENTRIES + 1]), "interface[0].route has 257 entries; there may be 256".into()),
        // Devices.
        (with_device(|device| device.hardware_address.clear()), "interface[0].device is missing; give hardware_address or driver".into()),
        (
            with_device(|device| device.hardware_address = "02:00:00:00:00".into()),
            format!("interface[0].device.hardware_address is \"02:00:00:00:00\", {hardware}"),
        ),
        (
            with_device(|device| device.hardware_address = "02:00:00:00:00:01:02".into()),
            format!("interface[0].device.hardware_address is \"02:00:00:00:00:01:02\", {hardware}"),
        ),
        (
            with_device(|device| device.hardware_address = "02:00:00:00:00:+1".into()),
            format!("interface[0].device.hardware_address is \"02:00:00:00:00:+1\", {hardware}"),
        ),
        (
            with_device(|device| device.hardware_address = "03:00:00:00:00:01".into()),
            format!("interface[0].device.hardware_address is \"03:00:00:00:00:01\", {hardware}"),
        ),
        (
            with_device(|device| (device.hardware_address, device.driver) = (String::new(), "../x".into())),
            "interface[0].device.driver is \"../x\", which is not a name of a kernel driver".into(),
        ),
        (with_device(|device| device.index = -1), "interface[0].device.index is \"-1\", which is not a number that is not negative".into()),
        // Bonds.
        (behind_one(bond(&[], |_| ())), "interface[1].bond.member_interface is missing; give at least one member".into()),
        (
            behind_one(bond(&["one", "one"], |_| ())),
            "interface[1].bond.member_interface[1] is \"one\", which interface[1].bond.member_interface[0] is already".into(),
        ),
        (behind_one(bond(&["one"], |bond| bond.mode = None)), "interface[1].bond.mode is missing; give one of lacp and active_backup".into()),
        (
            behind_one(bond(&["one"], |bond| bond.min_links = -1)),
            "interface[1].bond.min_links is \"-1\", which is not a number that is not negative".into(),
        ),
        (
            behind_one(bond(&["one"], |bond| bond.transmit_hash_policy = 6)),
            "interface[1].bond.transmit_hash_policy is \"6\", which is not a known policy".into(),
        ),
        (
            behind_one(bond(&["one"], |bond| {
                let monitor = bond::CarrierMonitor { down_delay_ms: -5, ..Default::default() };
                bond.link_monitor = Some(bond::LinkMonitor::CarrierMonitor(monitor));
            })),
            "interface[1].bond.carrier_monitor.down_delay_ms is \"-5\", which is not a number that is not negative".into(),
        ),
        (behind_one(lacp(|lacp| lacp.rate = 2)), "interface[1].bond.lacp.rate is \"2\", which is not a known rate".into()),
        (behind_one(lacp(|lacp| lacp.selection_logic = 3)), "interface[1].bond.lacp.selection_logic is \"3\", which is not a known selection logic".into()),
        (
            behind_one(lacp(|lacp| lacp.actor_system_priority = 65_536)),
            "interface[1].bond.lacp.actor_system_priority is \"65536\", which is not 0 for the kernel's default, or 1 to 65535".into(),
        ),
        (
            behind_one(lacp(|lacp| lacp.user_port_key = 1024)),
            "interface[1].bond.lacp.user_port_key is \"1024\", which is not 0 for none, or 1 to 1023".into(),
        ),
        (behind_one(lacp(|lacp| lacp.actor_system_mac = "x".into())), format!("interface[1].bond.lacp.actor_system_mac is \"x\", {hardware}")),
        (
            behind_one(bond(&["two"], |_| ())),
            "interface[1].bond.member_interface names the interface \"two\", which the configuration does not have".into(),
        ),
        (
            vec![member, bond(&["one"], |_| ())],
            "interface[0] belongs to the bond \"bond\" and has addresses, routes or automatic configuration of its own; give them \
             to the bond"
                .into(),
        ),
        (
            vec![one(), two(), bond(&["one", "two"], |_| ()), second_bond],
            "interface[3].bond.member_interface is \"one\", which a member of the bond \"bond\" is already".into(),
        ),
        // VLANs.
        (behind_one(vlan("v", "", 5)), "interface[1].vlan.parent is missing; give the name of the interface below".into()),
        (behind_one(vlan("v", "two", 5)), "interface[1].vlan.parent names the interface \"two\", which the configuration does not have".into()),
        (behind_one(vlan("v", "one", 0)), "interface[1].vlan.id is \"0\", which is not 1 to 4094".into()),
        (behind_one(vlan("v", "one", 4095)), "interface[1].vlan.id is \"4095\", which is not 1 to 4094".into()),
        (behind_one(vlan("v", "one", 65_537)), "interface[1].vlan.id is \"65537\", which is not 1 to 4094".into()),
        (
            vec![one(), vlan("v", "one", 5), vlan("w", "one", 5)],
            "interface[2].type is \"5 on one\", which interface[1] is already".into(),
        ),
        // Together.
        (vec![one(), device("one", "02:00:00:00:00:02")], "interface[1].name is \"one\", which the name of interface[0] is already".into()),
        (
            vec![one(), device("two", "02:00:00:00:00:01")],
            "interface[1].type is \"hardware address 02:00:00:00:00:01\", which interface[0] is already".into(),
        ),
        (
            vec![one(), vlan("v", "w", 5), vlan("w", "v", 5)],
            "interface has interfaces that are built on each other in a circle: v, w".into(),
        ),
        (vec![vlan("v", "v", 5)], "interface has interfaces that are built on each other in a circle: v".into()),
        // Addresses.
        (with_address("10.0.0.1"), format!("interface[0].address[1] is \"10.0.0.1\", {machine}")),
        (with_address("10.0.0.1/33"), format!("interface[0].address[1] is \"10.0.0.1/33\", {machine}")),
        (with_address("10.0.0.0/24"), format!("interface[0].address[1] is \"10.0.0.0/24\", {machine}")),
        (with_address("10.0.0.255/24"), format!("interface[0].address[1] is \"10.0.0.255/24\", {machine}")),
        (with_address("127.0.0.1/8"), format!("interface[0].address[1] is \"127.0.0.1/8\", {machine}")),
        (with_address("ff02::1/64"), format!("interface[0].address[1] is \"ff02::1/64\", {machine}")),
        // Routes.
        (with_route("", "", "", 0), format!("interface[0].route[0].destination is \"\", {network}")),
        (
            with_route("10.1.0.0/8", "", "", 0),
            "interface[0].route[0].destination is \"10.1.0.0/8\", which is not a network: it has bits behind its prefix".into(),
        ),
        (
            with_route("10.0.0.0/8", "fe80::1", "", 0),
            "interface[0].route[0].gateway_ip is \"fe80::1\", which is not an address of the same IP version as the destination".into(),
        ),
        (
            with_route("10.0.0.0/8", "0.0.0.0", "", 0),
            "interface[0].route[0].gateway_ip is \"0.0.0.0\", which is not the IP address of a machine".into(),
        ),
        (
            with_route("::/0", "fe80::1", "x", 0),
            "interface[0].route[0].source_ip is \"x\", which is not the IP address of a machine".into(),
        ),
        (
            with_route("::/0", "fe80::1", "", -1),
            "interface[0].route[0].metric is \"-1\", which is not a number that is not negative".into(),
        ),
    ];
    for (interfaces, expected) in table {
        let error = parse(interfaces).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let net = Net { interface: vec![one()], nameserver: vec![Nameserver { ip: "example".to_owned() }] };
    let error = NetworkConfiguration::from_wire(&net).unwrap_err();
    assert_eq!(error.to_string(), "nameserver[0].ip is \"example\", which is not the IP address of a machine");
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let whole = Net { interface: vec![one()], nameserver: Vec::new() }.encode_to_vec();
    assert!(NetworkConfiguration::parse(&whole).is_ok());
    let error = NetworkConfiguration::parse(&whole[..whole.len() - 1]).unwrap_err();
    assert_eq!(error.to_string(), "the bytes are not a Net message, or were cut short");
    assert!(error.source().is_some());
}
