//! The consensus member of a node comes and goes with its role, with the real etcd.

use std::time::Duration;

use polis_consensus::PeerPki;
use polis_rpc::testing::TestCluster;
use polis_storage::{LocalRoles, MemberJoin};
use tokio::time::{sleep, timeout};

use crate::founder::{joined, scene};
use crate::leader::Leader;
use crate::node::{Node, PATIENCE, free_address};

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_taken_and_given_again_starts_clean() {
    let (_, founder, mut node) = scene().await;
    founder.take_role(&node);
    node.start();
    node.in_contact().await;
    assert_eq!(node.stored(), "absent");

    for round in 1..=2 {
        founder.admit(&node).await;
        founder.promote(&node).await;
        node.works().await;
        let runs_curator = |status: &Option<polis_proto::common::NodeStatus>| {
            status.as_ref().is_some_and(|status| status.running_curator.is_some_and(|curator| curator.port == 7835))
        };
        founder.leader.script.wait_statuses(|told| told.last().is_some_and(|told| runs_curator(&told.status))).await;

        founder.remove(&node).await;
        founder.take_role(&node);
        node.no_member().await;
        assert_eq!(node.set_aside().len(), round);
        founder.leader.script.wait_statuses(|told| told.last().is_some_and(|told| !runs_curator(&told.status))).await;
    }
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_member_starts_once_the_node_is_prepared_for_a_vote() {
    let (_, founder, mut node) = scene().await;
    node.prepared.send_replace(false);
    founder.admit(&node).await;
    node.start();
    node.wait("asked", node.asked.subscribe(), |asked| *asked == 1).await;
    assert_eq!(node.stored(), "reserved");
    assert!(node.running().control_plane.member().borrow().is_none(), "it was started");

    // Waiting for that keeps nobody from taking the role away.
    founder.take_role(&node);
    node.no_member().await;
    founder.give_role(&node);
    node.wait("asked again", node.asked.subscribe(), |asked| *asked == 2).await;
    assert_eq!(node.stored(), "reserved");
    node.prepared.send_replace(true);
    founder.promote(&node).await;
    node.works().await;

    // One that has a vote may be needed by the leader itself: nothing is waited for.
    node.stop().await;
    node.prepared.send_replace(false);
    node.start();
    node.works().await;
    assert_eq!(*node.asked.borrow(), 2);
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_goes_on_at_the_next_start() {
    let (_, founder, mut node) = scene().await;
    // The role is there, and the leader has not added the node yet.
    founder.give_role(&node);
    node.start();
    node.wait_stored("joining").await;
    node.member().await;
    node.stop().await;
    assert_eq!(node.stored(), "joining");
    founder.add(&node).await;
    node.start();
    founder.promote(&node).await;
    node.works().await;

    // And one that has worked comes back with its data, although nobody tells it anything.
    node.stop().await;
    founder.leader.script.refuse(Some(tonic::Status::unavailable("not now")));
    node.start();
    node.works().await;
    assert_eq!(node.set_aside(), [""; 0]);
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_removed_and_keeps_its_role_joins_anew() {
    let (_, founder, mut node) = joined().await;
    // Its etcd knows that it was removed, and the cluster does not say so: others may need its vote to find out.
    founder.remove(&node).await;
    node.runs_though_removed(2).await;
    assert_eq!((node.stored(), node.set_aside()), ("established", Vec::new()));
    // The role was taken and given back, and the node has heard of neither.
    let before = node.credentials();
    founder.give_role(&node);
    let is_replaced = async {
        while node.credentials() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, is_replaced).await.unwrap();
    founder.add(&node).await;
    founder.promote(&node).await;
    node.works().await;
    assert!(node.set_aside().contains(&"removed-1".to_owned()));
    node.stop().await;
    founder.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_kill_has_left_of_a_leave_is_put_away_without_anybodys_help() {
    let cluster = TestCluster::default();
    for (credentials, data, joining) in
        [(true, true, false), (true, true, true), (true, false, false), (false, true, false), (false, false, true)]
    {
        let mut node = Node::new(&cluster);
        if credentials {
            PeerPki::found(&node.identity.key).store(&node.layout.data.etcd.credentials, "test").unwrap();
        }
        if data {
            let path = node.layout.data.etcd.data.path().child("member").unwrap();
            node.disk.create_directory(&path, 0o700).unwrap();
        }
        if joining {
            let record = MemberJoin { node_id: node.id().to_string() };
            node.layout.data.etcd.joining.store(&record, "test").unwrap();
        }
        node.layout.data.node.roles.store(&LocalRoles::default(), "test").unwrap();
        assert_ne!(node.stored(), "absent");
        node.start();
        node.no_member().await;
        assert_eq!(node.set_aside().len(), usize::from(data), "{credentials} {data} {joining}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_moved_is_found_by_its_key() {
    let (cluster, founder, mut node) = joined().await;

    // The other member moves, and somebody else of the cluster is now where it was.
    let (old, new) = (founder.leader.ip, free_address());
    let founder = founder.move_to(new).await;
    let impostor = Leader::start(cluster.node(), old);
    // Whether there is a leader meanwhile depends on who leads, as the other still finds this one.
    node.wait_connection("lost").await;
    node.peers.send_replace(vec![(founder.leader.node.id, new)]);
    node.works_again().await;
    node.wait_connection("established").await;
    node.stop().await;
    founder.finish().await;
    impostor.stop().await;
}
