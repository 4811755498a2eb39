//! What is deleted is refused, says so and stops; a decommissioned node cleans up after itself.

use polis_control::NodeState;
use polis_testkit::{Cluster, NodeData, processes};

use crate::{all_healthy, binary};

#[test]
fn a_deleted_node_stops_with_that_reason_and_never_starts_again() {
    let mut cluster = Cluster::on_loopback(binary(), 2);
    cluster.grow_to(1);
    cluster.register(1);
    cluster.approve(1);
    all_healthy(&cluster, 2);
    let id = cluster.id(1);
    let _ = cluster.polis(&format!("node delete {id} --bypass-not-decommissioned")).succeeds();
    let end = cluster.node(1).wait_exit();
    let log = cluster.node(1).log();
    assert_eq!(end.code(), Some(1), "{log}");
    assert!(log.contains("removed from the cluster"), "{log}");
    // Later starts end at once and touch nothing.
    cluster.start(1);
    let end = cluster.node(1).wait_exit();
    assert_eq!(end.code(), Some(1));
    assert!(cluster.node(1).log().contains("removed from the cluster"));
    all_healthy(&cluster, 1);
}

#[test]
fn a_node_that_is_deleted_while_it_waits_or_sleeps_learns_of_it() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow_to(1);
    // One waits for approval.
    cluster.register(1);
    let _ = cluster.node(1).wait_condition("waiting-for-approval");
    let waits = cluster.id(1);
    let _ = cluster.polis(&format!("node delete {waits}")).succeeds();
    assert_eq!(cluster.node(1).wait_exit().code(), Some(1));
    // One is not running.
    cluster.register(2);
    cluster.approve(2);
    let sleeps = cluster.id(2);
    cluster.kill(2);
    let _ = cluster.polis(&format!("node delete {sleeps} --bypass-not-decommissioned")).succeeds();
    cluster.start(2);
    assert_eq!(cluster.node(2).wait_exit().code(), Some(1));
    assert!(cluster.node(2).log().contains("removed from the cluster"));
}

#[test]
fn a_decommissioned_node_erases_its_keys_and_stops() {
    let mut cluster = Cluster::on_loopback(binary(), 2);
    cluster.grow_to(1);
    cluster.register(1);
    cluster.approve(1);
    all_healthy(&cluster, 2);
    let id = cluster.id(1);
    let _ = cluster.polis(&format!("node decommission {id} --wait")).succeeds();
    assert_eq!(cluster.node(1).wait_exit().code(), Some(1));
    let root = cluster.hosts[1].root();
    let data = NodeData::of(&root);
    assert!(data.is_locked() || !data.path("data/node/credentials").exists(), "the node's key is erased");
    let _ = cluster.polis(&format!("node delete {id}")).succeeds();
    all_healthy(&cluster, 1);
}

#[test]
fn the_same_machine_wiped_and_joined_again_and_again_hides_nobody() {
    let mut cluster = Cluster::on_loopback(binary(), 2);
    cluster.grow_to(1);
    for _ in 0..14 {
        cluster.register(1);
        let id = cluster.id(1);
        let _ = cluster.node(1).wait_condition("waiting-for-approval");
        let _ = cluster.polis(&format!("node approve {id}")).succeeds();
        let _ = cluster.node(1).wait_state(NodeState::Running);
        cluster.kill(1);
        // Of encrypted data a killed node leaves a mount, which ends by itself.
        processes::wait_until_gone(&cluster.hosts[1].root()).unwrap_or_else(|left| panic!("{left}"));
        std::fs::remove_dir_all(cluster.hosts[1].root()).expect("a wiped machine");
    }
    cluster.register(1);
    cluster.approve(1);
    let living = cluster.id(1);
    let nodes = cluster.wait_nodes("the living one is healthy", |nodes| {
        nodes.iter().any(|node| node["node_id"] == living.as_str() && node["health"] == "HEALTHY")
    });
    assert_eq!(nodes.len(), 16, "{nodes:?}");
    // A third machine can still be told where the living ones are.
    let info = cluster.polis("cluster info -o json").succeeds().json().to_string();
    assert!(info.contains(&cluster.hosts[0].ip().to_string()), "{info}");
}
