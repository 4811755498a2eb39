//! Whoever does not read what it has asked for, and whoever opens connections by the thousands, holds up nobody else.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use polis_testkit::Cluster;
use polis_testkit::owner_client::OwnerClient;
use polis_testkit::seed::is_soak;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{PORTS, binary};

/// Lists that are asked for on one connection and left unread: as many as a connection may have open, of some 45 KiB each, which is more
/// than a client of gRPC takes unread (5 MiB).
const UNREAD: usize = 199;

/// Changes that are made meanwhile, and the longest time that each may take. It takes some milliseconds.
const CHANGES: usize = 50;
const CHANGE: Duration = Duration::from_secs(1);

/// Connections of a flood, in a long run at each port and in a short one at that of the curator.
const FLOOD: usize = 10_000;
const SHORT_FLOOD: usize = 2_500;
const CURATOR_PORT: u16 = 7835;

/// Changes that the owner makes in the course of a flood.
const CHANGES_IN_FLOOD: usize = 10;

/// What is left to this process beside the connections of a flood.
const OTHER_DESCRIPTORS: u64 = 512;

#[test]
fn lists_of_nodes_that_nobody_reads_hold_up_no_change() {
    let mut cluster = Cluster::on_loopback(binary(), 1);
    cluster.found();
    let id = cluster.id(0);
    let client = || OwnerClient::new(&cluster.configuration(), cluster.hosts[0].ip(), Duration::from_secs(20));
    let (mut slow, mut other) = (client(), client());
    assert!(slow.fill_with_labels(&id));
    let unread = slow.leave_unread(UNREAD);
    let mut longest = Duration::ZERO;
    for number in 0..CHANGES {
        let began = Instant::now();
        assert!(other.set_label(&id, "changed", &number.to_string()));
        longest = longest.max(began.elapsed());
        let labels = other.labels().expect("others read as ever");
        assert_eq!(labels[&id]["changed"], number.to_string());
    }
    println!("the longest of {CHANGES} changes took {longest:?}");
    assert!(longest < CHANGE);
    drop(unread);
    assert!(slow.set_label(&id, "changed", "by-the-slow-one"), "its connection is as good as before");
}

#[test]
fn a_flood_of_connections_keeps_nobody_from_being_served() {
    let (connections, ports) = if is_soak() { (FLOOD, &PORTS[..]) } else { (SHORT_FLOOD, &[CURATOR_PORT][..]) };
    let wanted = connections as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("a process may raise its limit of open files to the hard one");
    }
    let mut cluster = Cluster::on_loopback(binary(), 2);
    cluster.grow_to(1);
    cluster.register(1);
    cluster.approve(1);
    let (id, address) = (cluster.id(0), cluster.hosts[0].ip());
    let mut owner = OwnerClient::new(&cluster.configuration(), address, Duration::from_secs(5));
    for port in ports {
        let began = Instant::now();
        let mut open = Vec::with_capacity(connections);
        let mut answers = Vec::new();
        for number in 0..connections {
            let to = SocketAddr::new(address, *port);
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5));
            let mut stream = stream.unwrap_or_else(|error| panic!("{to} takes no connection after {number}: {error}"));
            // The beginning of a handshake that never goes on. Who is closed at once is so.
            let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x02]);
            open.push(stream);
            if number % (connections / CHANGES_IN_FLOOD) == 0 {
                let asked = Instant::now();
                assert!(owner.set_label(&id, "flood", &number.to_string()), "after {number} connections");
                answers.push(asked.elapsed());
            }
        }
        for line in ["node list", &format!("node logs {id}"), "cluster status"] {
            let _ = cluster.polis(line).succeeds();
        }
        println!("{port}: {connections} connections within {:?}, changes meanwhile took {answers:?}", began.elapsed());
        drop(open);
    }
    let _ = cluster.node(1).wait_contact();
    assert!(!cluster.node(0).log().contains("panicked"));
}
