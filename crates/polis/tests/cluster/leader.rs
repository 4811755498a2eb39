//! The leader dies, hangs, or everybody does.

use std::time::Duration;

use polis_control::NodeState;
use polis_testkit::Cluster;
use rustix::process::Signal;

use crate::writer::Writer;
use crate::{all_healthy, binary, rounds};

/// How long a cluster may be without a leader before this counts as a fault of the test.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of three members and the index of its leader.
fn three() -> Cluster {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    cluster
}

/// The node that leads, by number.
fn leader(cluster: &mut Cluster) -> usize {
    let status = cluster.polis("cluster status -o json").succeeds().json();
    let id = status["leader"].as_str().expect("there is a leader").to_owned();
    (0..cluster.hosts.len())
        .find(|number| cluster.nodes[*number].is_some() && cluster.id(*number) == id)
        .expect("the leader is one of the nodes")
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
    cluster.node(leads).signal(Signal::STOP);
    // 15 s until the others take its silence for a fault, and some for their clients to notice.
    let took = writer.write(&cluster, Duration::from_secs(25));
    cluster.node(leads).signal(Signal::CONT);
    println!("a write succeeded {took:?} after the leader had been stopped");
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
