//! Leases that come, change and go.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_condition::Severity;
use polis_network::NO_ADDRESS;
use polis_network::machine::{DHCP_LEASE_LOST, DHCP_NO_ANSWER, MachineNetwork};
use tokio::sync::Notify;

use crate::namespace::{in_namespace, ip};
use crate::node::{History, Node};
use crate::outside::{Outside, hardware};
use crate::server::{Rules, Server};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const REQUEST: u8 = 3;

fn gives(last: u8) -> Rules {
    Rules { gives: Some(Ipv4Addr::new(10, 1, 0, last)), refuses: None, lease: 600, renew: 300 }
}

#[test]
fn a_lease_is_given_renewed_and_lost_and_another_one_is_given() {
    in_namespace("dhcp::a_lease_is_given_renewed_and_lost_and_another_one_is_given", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        // Whoever is told of the address knows it without having asked.
        outside.command("sysctl").args(["-qw", "net.ipv4.conf.one-far.arp_accept=1"]).status().unwrap();
        let server = Server::start(&outside, "one", SERVER, Rules { lease: 5, renew: 2, ..gives(5) });
        let mut node = Node::start(MachineNetwork::default());
        node.has("10.1.0.5").await;
        node.all_is_well().await;
        let routes = ip("route show default");
        assert!(routes.starts_with("default via 10.1.0.1 dev one proto dhcp src 10.1.0.5 metric 1024"), "{routes}");
        let neighbour = outside.ip("neighbour show 10.1.0.5");
        assert!(neighbour.contains(&hardware(1)), "{neighbour}");

        // For twice the time of the lease it stays, renewed by messages from the address to the server.
        let history = History::of(&node);
        server.heard();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let heard = server.heard();
        assert!(heard.len() >= 3, "{heard:?}");
        assert!(heard.iter().all(|message| *message == (REQUEST, Ipv4Addr::new(10, 1, 0, 5))), "{heard:?}");

        // The server is silent: the lease runs out, the address goes, and the node keeps asking.
        server.change(|rules| rules.gives = None);
        node.has("").await;
        assert_eq!(history.end().await, [None]);
        let condition = node.raised(DHCP_LEASE_LOST).await;
        assert_eq!(condition.severity, Severity::Error);
        let message = "the lease of an address is over: 10.1.0.5 on one, as no server has extended it";
        assert_eq!(condition.message, message);
        assert_eq!(ip("-4 address show dev one"), "");
        assert_eq!(ip("route show"), "");
        assert!(node.raised(NO_ADDRESS).await.message.contains("no DHCP server has given it one"));

        server.change(|rules| rules.gives = Some(Ipv4Addr::new(10, 1, 0, 6)));
        node.has("10.1.0.6").await;
        node.all_is_well().await;
        node.stop().await;
    });
}

#[test]
fn another_address_at_renewal_is_taken_on_before_the_old_one_goes() {
    in_namespace("dhcp::another_address_at_renewal_is_taken_on_before_the_old_one_goes", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        let server = Server::start(&outside, "one", SERVER, Rules { renew: 1, ..gives(5) });
        let mut node = Node::start(MachineNetwork::default());
        node.has("10.1.0.5").await;
        let history = History::of(&node);
        // Confirmed with another address, then refused.
        server.change(|rules| rules.gives = Some(Ipv4Addr::new(10, 1, 0, 7)));
        node.has("10.1.0.7").await;
        server.change(|rules| {
            rules.refuses = Some(Ipv4Addr::new(10, 1, 0, 7));
            rules.gives = Some(Ipv4Addr::new(10, 1, 0, 9));
        });
        node.has("10.1.0.9").await;
        node.all_is_well().await;
        let addresses = ip("-4 -o address show dev one");
        assert!(addresses.lines().count() == 1 && addresses.contains("10.1.0.9/24"), "{addresses}");
        let routes = ip("route show");
        assert!(!routes.contains("10.1.0.5") && !routes.contains("10.1.0.7"), "{routes}");
        let expected = [7, 9].map(|last| Some(Ipv4Addr::new(10, 1, 0, last).into()));
        assert_eq!(history.end().await, expected, "the node always has an address");
        node.stop().await;
    });
}

#[test]
fn a_network_that_dies_goes_on_with_what_the_kernel_has() {
    in_namespace("dhcp::a_network_that_dies_goes_on_with_what_the_kernel_has", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        let server = Server::start(&outside, "one", SERVER, gives(5));
        let dies = Arc::new(Notify::new());
        let mut node = Node::start_beside(MachineNetwork::default(), Arc::clone(&dies));
        node.has("10.1.0.5").await;
        node.all_is_well().await;
        assert!(ip("link show dev lo").contains("UP"), "a machine talks to itself");
        let history = History::of(&node);
        server.heard();
        dies.notify_one();
        // Its next life asks whether the lease still holds, and for nothing else.
        let deadline = Instant::now() + crate::node::DEADLINE;
        while server.heard.lock().unwrap().is_empty() {
            assert!(Instant::now() < deadline && node.conditions().is_empty(), "{:?}", node.conditions());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(server.heard(), [(REQUEST, Ipv4Addr::new(10, 1, 0, 5))]);
        // It takes away what its earlier life gave.
        server.change(|rules| rules.gives = None);
        outside.ip("link set one-far down");
        node.has("").await;
        assert_eq!(ip("-4 address show dev one"), "");
        assert_eq!(history.end().await, [None]);
        assert!(node.deaths() > 0);
        node.end().await;
    });
}

#[test]
fn without_a_usable_answer_there_is_a_condition_that_says_why() {
    in_namespace("dhcp::without_a_usable_answer_there_is_a_condition_that_says_why", async || {
        let mut node = Node::start(MachineNetwork::default());
        assert_eq!(node.raised(NO_ADDRESS).await.message, "this machine has no address: it has no Ethernet device");
        // A device appears, without a carrier; then it has one.
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        outside.ip("link set one-far down");
        let carrier = "this machine has no address: no Ethernet device has a carrier (one)";
        while node.raised(NO_ADDRESS).await.message != carrier {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let server = Server::start(&outside, "one", SERVER, Rules { lease: 0, ..gives(5) });
        outside.ip("link set one-far up");
        let condition = node.raised(DHCP_NO_ANSWER).await;
        let message = "no DHCP server gives this machine an address: the answers on one cannot be used (it does not say for \
                       how long (option 51))";
        assert_eq!((condition.severity, &*condition.message), (Severity::Error, message));
        // A second server on the same link does better.
        let better = Server::start(&outside, "one", Ipv4Addr::new(10, 1, 0, 2), gives(8));
        node.has("10.1.0.8").await;
        node.all_is_well().await;
        drop((server, better));
        node.stop().await;
    });
}

#[test]
fn with_several_links_the_first_lease_wins_until_it_is_lost() {
    in_namespace("dhcp::with_several_links_the_first_lease_wins_until_it_is_lost", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        let first = Server::start(&outside, "one", SERVER, gives(5));
        let mut node = Node::start(MachineNetwork::default());
        node.has("10.1.0.5").await;
        let history = History::of(&node);

        outside.cable("two", 2, "10.2.0.1/24");
        let rules = Rules { gives: Some(Ipv4Addr::new(10, 2, 0, 5)), ..gives(5) };
        let second = Server::start(&outside, "two", Ipv4Addr::new(10, 2, 0, 1), rules);
        let deadline = Instant::now() + crate::node::DEADLINE;
        while !ip("route show default").contains("via 10.2.0.1 dev two proto dhcp src 10.2.0.5 metric 1025") {
            assert!(Instant::now() < deadline, "{}", ip("route show default"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The cable of the first one is pulled. When it is back the node stays where it is.
        outside.ip("link set one-far down");
        node.has("10.2.0.5").await;
        assert_eq!(ip("-4 address show dev one"), "");
        assert_eq!(node.raised(DHCP_LEASE_LOST).await.severity, Severity::Warning);
        outside.ip("link set one-far up");
        node.all_is_well().await;
        let routes = ip("route show default");
        assert!(routes.starts_with("default via 10.2.0.1 dev two"), "{routes}");
        assert!(routes.contains("default via 10.1.0.1 dev one proto dhcp src 10.1.0.5 metric 1026"), "{routes}");
        // The device goes altogether.
        ip("link del two");
        node.has("10.1.0.5").await;
        let expected = [Ipv4Addr::new(10, 2, 0, 5), Ipv4Addr::new(10, 1, 0, 5)].map(|address| Some(address.into()));
        assert_eq!(history.end().await, expected);
        drop((first, second));
        node.stop().await;
    });
}
