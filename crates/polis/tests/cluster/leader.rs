//! The leader dies, hangs, or everybody does.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use polis_control::NodeState;
use polis_testkit::Cluster;
use polis_testkit::history::History;
use polis_testkit::owner_client::OwnerClient;
use rustix::process::Signal;

use crate::writer::Writer;
use crate::{all_healthy, binary, leader, rounds};

/// How long a cluster may be without a leader before this counts as a fault of the test.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes that are under way to a leader that hangs when it is woken.
const IN_FLIGHT: usize = 4;

/// How long these are waited for.
const LONG: Duration = Duration::from_secs(60);

/// A cluster of three members and the index of its leader.
fn three() -> Cluster {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    cluster
}

#[test]
fn a_killed_leader_is_replaced_and_loses_nothing_that_was_acknowledged() {
    let mut cluster = three();
    let written = cluster.id(0);
    let mut writer = Writer::new(&written);
    for _ in 0..rounds(5, 20) {
        writer.write(&cluster, PATIENCE);
        let leads = leader(&mut cluster);
        cluster.kill(leads);
        writer.write(&cluster, PATIENCE);
        writer.check(&cluster);
        cluster.start(leads);
        let _ = cluster.node(leads).wait_state(NodeState::Running);
        all_healthy(&cluster, 3);
    }
    writer.check(&cluster);
}

#[test]
fn a_leader_whose_process_hangs_while_its_etcd_goes_on_is_replaced() {
    let mut cluster = three();
    let written = cluster.id(0);
    let mut writer = Writer::new(&written);
    writer.write(&cluster, PATIENCE);
    let leads = leader(&mut cluster);
    let (configuration, address) = (cluster.configuration(), cluster.hosts[leads].ip());
    let is_asked = Barrier::new(IN_FLIGHT + 1);
    thread::scope(|scope| {
        let in_flight: Vec<_> = (0..IN_FLIGHT)
            .map(|client| {
                let (configuration, written, is_asked) = (&configuration, &written, &is_asked);
                scope.spawn(move || {
                    let mut owner = OwnerClient::new(configuration, address, LONG);
                    let key = format!("in-flight-{client}");
                    assert!(owner.set_label(written, &key, "before"), "it leads");
                    is_asked.wait();
                    // It hangs, and another one leads.
                    is_asked.wait();
                    owner.set_label(written, &key, "while-it-hung")
                })
            })
            .collect();
        is_asked.wait();
        cluster.node(leads).signal(Signal::STOP);
        // 15 s until the others take its silence for a fault, and some for their clients to notice.
        let took = writer.write(&cluster, Duration::from_secs(25));
        println!("a write succeeded {took:?} after the leader had been stopped");
        // On connections that the old leader has, these reach it while it still takes itself for the leader.
        is_asked.wait();
        cluster.node(leads).signal(Signal::CONT);
        for client in in_flight {
            assert!(!client.join().unwrap(), "the old leader has acknowledged a write when it was woken");
        }
    });
    let history = History::of_member(&cluster.hosts[leads].root());
    for client in 0..IN_FLIGHT {
        let [before, hung] =
            ["before", "while-it-hung"].map(|value| history.written(&written, &format!("in-flight-{client}"), value));
        assert!(before.is_some() && hung.is_none(), "{before:?} {hung:?}");
    }
    all_healthy(&cluster, 3);
    writer.write(&cluster, PATIENCE);
    writer.check(&cluster);
}

#[test]
fn all_members_die_at_once_and_come_back() {
    let mut cluster = three();
    let written = cluster.id(0);
    let mut writer = Writer::new(&written);
    for _ in 0..rounds(2, 10) {
        writer.write(&cluster, PATIENCE);
        for number in 0..3 {
            cluster.kill(number);
        }
        for number in 0..3 {
            cluster.start(number);
        }
        for number in 0..3 {
            let _ = cluster.node(number).wait_state(NodeState::Running);
        }
        writer.check(&cluster);
        all_healthy(&cluster, 3);
    }
}
