//! Static configurations.

use std::net::IpAddr;

use polis_network::machine::{CONFIGURATION_REFUSED, DEVICE_MISSING, MachineNetwork};
use polis_network_configuration::NetworkConfiguration;
use polis_proto::osbase::net::proto::interface::{Route, Type};
use polis_proto::osbase::net::proto::{Bond, Device, IPv4Autoconfig, Interface, Nameserver, Net, Vlan, bond};
use tokio::time::timeout;

use crate::namespace::{in_namespace, ip};
use crate::node::{DEADLINE, Node};
use crate::outside::{Outside, hardware};

fn device(name: &str, number: u8, addresses: &[&str]) -> Interface {
    let device = Device { hardware_address: hardware(number), ..Device::default() };
    interface(name, Type::Device(device), addresses)
}

fn interface(name: &str, kind: Type, addresses: &[&str]) -> Interface {
    let address = addresses.iter().map(|text| (*text).to_owned()).collect();
    Interface { name: name.to_owned(), r#type: Some(kind), address, ..Interface::default() }
}

fn route(destination: &str, gateway: &str, metric: i32) -> Route {
    Route { destination: destination.to_owned(), gateway_ip: gateway.to_owned(), source_ip: String::new(), metric }
}

fn network(interface: Vec<Interface>) -> MachineNetwork {
    let nameserver = vec![Nameserver { ip: "192.0.2.53".to_owned() }];
    MachineNetwork { configuration: Some(NetworkConfiguration::from_wire(&Net { interface, nameserver }).unwrap()) }
}

#[test]
fn a_static_configuration_is_carried_out_once_and_removes_nothing() {
    in_namespace("fixed::a_static_configuration_is_carried_out_once_and_removes_nothing", async || {
        let outside = Outside::new();
        // The name that one is to have is that of the other.
        outside.cable("uplink", 1, "10.1.0.1/24");
        outside.cable("one", 2, "10.2.0.1/24");
        ip("address add 10.9.0.9/24 dev uplink");
        let mut uplink = device("uplink", 2, &["10.2.0.5/24", "fd00:2::5/64"]);
        uplink.mtu = 1400;
        uplink.route = vec![route("0.0.0.0/0", "10.2.0.1", 0), route("fd00:9::/64", "fd00:2::1", 7)];
        let network = network(vec![uplink]);
        let mut node = Node::start(network.clone());
        node.has("10.2.0.5").await;
        node.all_is_well().await;
        let servers: Vec<IpAddr> = vec!["192.0.2.53".parse().unwrap()];
        timeout(DEADLINE, node.nameservers.wait_for(|found| *found == servers)).await.unwrap().unwrap();
        let link = ip("link show dev uplink");
        assert!(link.contains(&hardware(2)) && link.contains("mtu 1400") && link.contains("UP"), "{link}");
        assert_eq!(ip("route show default"), "default via 10.2.0.1 dev uplink proto static \n");
        assert!(ip("-6 route show").contains("fd00:9::/64 via fd00:2::1 dev uplink proto static metric 7"));
        // The other device has another name, and what it had.
        assert!(ip("-4 -o address show").contains("10.9.0.9/24"));
        node.stop().await;

        // Once more: nothing changes.
        // The kernel may still be asking whether somebody else has the IPv6 address.
        let all = || {
            let addresses = ip("-o address show").replace("tentative ", "");
            [addresses, ip("route show"), ip("-6 route show"), ip("-o link show")]
        };
        let before = all();
        let mut node = Node::start(network);
        node.has("10.2.0.5").await;
        node.all_is_well().await;
        assert_eq!(before, all());
        // What somebody takes away comes back.
        ip("address del 10.2.0.5/24 dev uplink");
        let deadline = std::time::Instant::now() + DEADLINE;
        while ip("route show default") != "default via 10.2.0.1 dev uplink proto static \n" {
            assert!(std::time::Instant::now() < deadline);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        node.has("10.2.0.5").await;
        node.stop().await;
    });
}

#[test]
fn a_device_that_is_missing_is_named_and_waited_for() {
    in_namespace("fixed::a_device_that_is_missing_is_named_and_waited_for", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        let mut node =
            Node::start(network(vec![device("up", 7, &["10.7.0.5/24"]), device("side", 1, &["10.1.0.5/24"])]));
        let condition = node.raised(DEVICE_MISSING).await;
        let message = "the static network configuration names devices that this machine does not have: up (hardware address \
                       02:00:00:00:00:07). Its devices: side 02:00:00:00:00:01, driver veth";
        assert_eq!(condition.message, message);
        node.has("10.1.0.5").await;
        outside.cable("late", 7, "10.7.0.1/24");
        node.has("10.7.0.5").await;
        node.all_is_well().await;
        assert!(ip("link show dev up").contains(&hardware(7)));
        node.stop().await;
    });
}

#[test]
fn dhcp_decides_where_the_configuration_says_so() {
    in_namespace("fixed::dhcp_decides_where_the_configuration_says_so", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        outside.cable("two", 2, "10.2.0.1/24");
        let gives = std::net::Ipv4Addr::new(10, 2, 0, 5);
        let rules = crate::server::Rules { gives: Some(gives), refuses: None, lease: 600, renew: 300 };
        let server = crate::server::Server::start(&outside, "two", std::net::Ipv4Addr::new(10, 2, 0, 1), rules);
        let mut asking = device("asking", 2, &[]);
        asking.ipv4_autoconfig = Some(IPv4Autoconfig {});
        let mut node = Node::start(network(vec![device("fixed", 1, &["10.1.0.5/24"]), asking]));
        node.has("10.2.0.5").await;
        node.all_is_well().await;
        assert!(ip("-4 -o address show dev fixed").contains("10.1.0.5/24"));
        drop(server);
        node.stop().await;
    });
}

/// Whether the kernel has interfaces of this kind: not every one does, and no package brings them.
fn kernel_has(kind: &str) -> bool {
    let add = match kind {
        "vlan" => "link add link one name probe type vlan id 99".to_owned(),
        kind => format!("link add probe type {kind}"),
    };
    let output = std::process::Command::new("ip").args(add.split(' ')).output().unwrap();
    if output.status.success() {
        ip("link del probe");
    } else {
        eprintln!("this kernel has no {kind}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

#[test]
fn bonds_and_vlans_are_made_or_the_refusal_is_told() {
    in_namespace("fixed::bonds_and_vlans_are_made_or_the_refusal_is_told", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        outside.cable("two", 2, "10.2.0.1/24");
        let has_both = kernel_has("bond") && kernel_has("vlan");
        let monitor = bond::CarrierMonitor { polling_interval_ms: 50, down_delay_ms: 100, ..Default::default() };
        let lacp = bond::Lacp {
            rate: 1,
            selection_logic: 1,
            actor_system_priority: 77,
            user_port_key: 5,
            actor_system_mac: "02:00:00:00:00:0a".to_owned(),
        };
        let modes = [
            (bond::Mode::ActiveBackup(bond::ActiveBackup {}), "mode active-backup ", ""),
            (
                bond::Mode::Lacp(lacp),
                "mode 802.3ad ",
                // The rest of it the kernel shows to nobody in a user namespace.
                "lacp_rate fast ad_select bandwidth",
            ),
        ];
        for (mode, expected, details) in modes {
            let bond = Bond {
                member_interface: vec!["first".to_owned(), "second".to_owned()],
                link_monitor: Some(bond::LinkMonitor::CarrierMonitor(monitor)),
                transmit_hash_policy: 1,
                min_links: 1,
                mode: Some(mode),
            };
            let vlan = Vlan { parent: "pair".to_owned(), id: 5, protocol: 0 };
            let network = network(vec![
                interface("tagged", Type::Vlan(vlan), &["10.5.0.5/24"]),
                interface("pair", Type::Bond(bond), &["10.3.0.5/24"]),
                device("first", 1, &[]),
                device("second", 2, &[]),
            ]);
            let mut node = Node::start(network.clone());
            if !has_both {
                let condition = node.raised(CONFIGURATION_REFUSED).await;
                assert!(condition.message.contains("cannot make pair, a bond of first and second"), "{condition:?}");
                assert!(ip("link show").contains("first"), "the rest is done");
                assert_eq!(node.conditions(), [CONFIGURATION_REFUSED, polis_network::NO_ADDRESS]);
                node.stop().await;
                continue;
            }
            node.has("10.5.0.5").await;
            node.all_is_well().await;
            let pair = ip("-d link show dev pair");
            assert!(pair.contains(expected) && pair.contains(details), "{pair}");
            for all in ["miimon 50 updelay 0 downdelay 100", "min_links 1", &hardware(1)] {
                assert!(pair.contains(all), "{all:?} in {pair}");
            }
            for member in ["first", "second"] {
                assert!(ip(&format!("link show dev {member}")).contains("master pair"));
            }
            assert!(ip("-d link show dev tagged").contains("vlan protocol 802.1Q id 5"));
            node.stop().await;
            let before = (ip("-o address show"), ip("route show"));
            let mut node = Node::start(network);
            node.has("10.5.0.5").await;
            node.all_is_well().await;
            assert_eq!(before, (ip("-o address show"), ip("route show")));
            node.stop().await;
            ip("link del pair");
        }
    });
}
