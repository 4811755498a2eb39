//! Addresses and ports that cannot be had yet.

use std::net::TcpListener;
use std::path::Path;

use polis_control::NodeState;
use polis_testkit::address::TestAddress;
use polis_testkit::checks::OnDisk;
use polis_testkit::confined::{Namespace, enter_network, in_namespace};
use polis_testkit::refusal::{Says, has_condition};

use crate::Place;

#[test]
fn address_that_is_not_on_this_machine() {
    let mut place = Place::new();
    // For documentation (RFC 5737), so that no machine has it.
    let address = "192.0.2.7";
    place.host.move_to(TestAddress::of_nobody(address.parse().unwrap()));
    let command = in_namespace(Namespace::Network, "ip link set lo up", &[], place.command());
    let mut node = place.host.spawn(command);
    let status = node.wait_condition("consensus-address-not-here");
    let says = Says {
        what: "etcd cannot be started",
        place: Path::new(address),
        why: "cannot be used on this machine (Cannot assign requested address",
        next: "Give the address to an interface, or start the node with an address it has.",
    };
    has_condition(&status, "consensus-address-not-here", says);
    assert_eq!(status.state, NodeState::CreatingCluster);
    enter_network(node.id(), &["ip", "address", "add", "192.0.2.7/32", "dev", "lo"]);
    place.runs_well(node, &OnDisk { node_id: status.node_id, ..OnDisk::default() });
}

#[test]
fn port_that_is_taken() {
    let place = Place::new();
    let taken = TcpListener::bind((place.host.ip(), 7834)).unwrap();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_condition("consensus-port-taken");
    let endpoint = format!("{}:7834", place.host.ip());
    let says = Says {
        what: "etcd cannot be started",
        place: Path::new(&endpoint),
        why: "another program has",
        next: "End the program that listens there (`ss -ltnp` names it), or give this node an address of its own.",
    };
    has_condition(&status, "consensus-port-taken", says);
    assert_eq!(status.state, NodeState::CreatingCluster);
    drop(taken);
    place.runs_well(node, &OnDisk { node_id: status.node_id, ..OnDisk::default() });
}
