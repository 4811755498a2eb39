//! A node that is dead for good is replaced; the tool does not let the quorum go.

use polis_testkit::Cluster;
use polis_testkit::cluster::health;

use crate::{all_healthy, binary};

/// Takes the consensus role from a dead node, deletes it, and lets another one take its place.
fn replace(cluster: &mut Cluster, dead: &str, new: usize) {
    let _ = cluster.wait_nodes("the dead node is missed", |nodes| health(nodes, dead) == Some("HEARTBEAT_TIMEOUT"));
    let _ = cluster.polis(&format!("node remove role KubernetesController {dead}"));
    let _ = cluster.polis(&format!("node remove role ConsensusMember {dead}")).succeeds();
    let _ = cluster.polis(&format!("node delete {dead} --bypass-not-decommissioned")).succeeds();
    cluster.register(new);
    cluster.approve(new);
    cluster.make_member(new);
}

#[test]
fn one_of_three_is_replaced() {
    let mut cluster = Cluster::on_loopback(binary(), 4);
    cluster.grow_to(3);
    all_healthy(&cluster, 3);
    let dead = cluster.id(0);
    cluster.kill(0);
    replace(&mut cluster, &dead, 3);
    all_healthy(&cluster, 3);
    let members = cluster.wait_members("three members", |members| members.len() == 3);
    assert!(members.iter().all(|member| member["node_id"] != dead.as_str()), "{members:?}");
}

#[test]
fn two_of_five_are_replaced_and_a_third_may_not_go() {
    let mut cluster = Cluster::on_loopback(binary(), 7);
    cluster.grow_to(5);
    all_healthy(&cluster, 5);
    let (first, second, living) = (cluster.id(1), cluster.id(2), cluster.id(3));
    cluster.kill(1);
    cluster.kill(2);
    let _ = cluster.wait_nodes("both are missed", |nodes| {
        [&first, &second].iter().all(|id| health(nodes, id) == Some("HEARTBEAT_TIMEOUT"))
    });
    // Four members, of which two are dead, need three.
    let refused = cluster.polis(&format!("node remove role ConsensusMember {living}"));
    assert_eq!(refused.code, Some(3), "{refused:#?}");
    assert!(refused.stderr.contains('3') && refused.stderr.contains('2'), "the numbers are told: {refused:#?}");
    replace(&mut cluster, &first, 5);
    replace(&mut cluster, &second, 6);
    all_healthy(&cluster, 5);
    let _ = cluster.wait_members("five members", |members| {
        members.len() == 5 && members.iter().all(|member| member["learner"] == false)
    });
}

#[test]
fn the_last_member_stays() {
    let mut cluster = Cluster::on_loopback(binary(), 1);
    cluster.found();
    all_healthy(&cluster, 1);
    let id = cluster.id(0);
    let _ = cluster.polis(&format!("node remove role KubernetesController {id}")).succeeds();
    let refused = cluster.polis(&format!("node remove role ConsensusMember {id}"));
    assert_eq!(refused.code, Some(3), "{refused:#?}");
    all_healthy(&cluster, 1);
}
