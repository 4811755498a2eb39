//! Addresses change while nodes are stopped: of one, and of all at once.

use polis_control::NodeState;
use polis_testkit::{Cluster, world};

use crate::{all_healthy, binary};

#[test]
fn a_node_that_moved_while_stopped_finds_the_others() {
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    let node = cluster.nodes[1].take().expect("it runs");
    assert!(node.stop().success());
    world.readdress(1, 51);
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    all_healthy(&cluster, 3);
}

#[test]
fn nodes_that_all_moved_while_stopped_find_each_other() {
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    // No address that anybody knew is of use.
    for number in 0..3 {
        cluster.nodes[number].take().expect("it runs").stop();
    }
    for number in 0..3_u8 {
        world.readdress(number.into(), 60 + number);
    }
    for number in 0..3 {
        cluster.start(number);
    }
    for number in 0..3 {
        let _ = cluster.node(number).wait_state(NodeState::Running);
    }
    all_healthy(&cluster, 3);
}
