//! Three members: growing, moving, stopping, losing.

use std::time::{Duration, Instant};

use polis_consensus::{KvError, MembershipError, Pace, Phase, Timing};
use polis_identity::NodeId;

use crate::cluster::Cluster;
use crate::node::{Node, PATIENCE, free_address};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_to_three_and_each_member_may_restart() {
    let began = Instant::now();
    let mut cluster = Cluster::of_three().await;
    println!("grown from nothing to three members in {} ms", began.elapsed().as_millis());
    cluster.check("grown").await;
    let before = cluster.all_ready().await;
    assert!(before.iter().all(|status| status.members == before[0].members), "{before:?}");
    assert!(before[0].members.iter().all(|member| member.is_started && !member.is_learner && member.node_id.is_some()));
    for index in 0..cluster.nodes.len() {
        let node = &mut cluster.nodes[index];
        node.timing = Timing::Network(Pace::Near);
        node.stop().await;
        node.restart();
        cluster.introduce();
        cluster.nodes[index].ready().await;
        cluster.check("restarted").await;
    }
    let after = cluster.all_ready().await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.member_id, after.member_id);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_moves_and_then_all_of_them_while_stopped() {
    let mut cluster = Cluster::of_three().await;
    let before = cluster.all_ready().await;
    cluster.check("before").await;

    let moving = &cluster.nodes[1];
    let process_id = moving.process_id();
    moving.address.send_replace(Some(free_address()));
    cluster.introduce();
    moving.wait_for("at its new address", |status| status.is_ready() && status.process_id != Some(process_id)).await;
    cluster.check("one moved").await;

    for node in &mut cluster.nodes {
        node.timing = Timing::Network(Pace::Near);
        node.stop().await;
        node.address.send_replace(Some(free_address()));
    }
    for node in &mut cluster.nodes {
        node.restart();
    }
    cluster.introduce();
    let after = cluster.all_ready().await;
    cluster.check("all moved").await;
    // No change of members was needed.
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.members, after.members);
        assert_eq!(before.member_id, after.member_id);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_member_does_not_start_its_etcd_while_that_runs_where_it_was() {
    let mut cluster = Cluster::found().await;
    cluster.grow().await;
    cluster.check("before").await;
    // A member can only be copied whole while it does not run.
    cluster.nodes[1].timing = Timing::Network(Pace::Near);
    cluster.nodes[1].stop().await;
    let mut copy = cluster.nodes[1].copy();
    copy.timing = Timing::Network(Pace::Near);
    cluster.nodes[1].restart();
    cluster.introduce();
    cluster.nodes[1].ready().await;
    copy.restart();
    let message = copy.wait_condition("consensus-runs-elsewhere").await;
    assert!(message.contains(&format!("{}:7834", cluster.nodes[1].ip())), "{message}");
    assert_eq!(copy.consensus().status().borrow().process_id, None, "its etcd does not run");
    cluster.check("beside the copy").await;

    // When the other has ended, it has moved.
    cluster.nodes[1].stop().await;
    cluster.nodes[1] = copy;
    cluster.introduce();
    cluster.nodes[1].ready().await;
    cluster.nodes[1].wait_no_condition("consensus-runs-elsewhere").await;
    cluster.check("moved").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_loses_its_quorum_says_so_until_it_has_one_again() {
    let mut cluster = Cluster::of_three().await;
    cluster.all_ready().await;
    cluster.check("before").await;
    futures::future::join_all(cluster.nodes[1..].iter_mut().map(Node::stop)).await;
    let left = &cluster.nodes[0];
    left.wait_for("leaderless", |status| status.phase == Phase::Leaderless).await;
    let message = left.wait_condition("consensus-no-leader").await;
    assert!(message.contains("of its 3 voting members fewer than 2"), "{message}");
    let root = left.consensus().kv_root();
    let refused = root.put("test/put", "key", "value").await;
    assert!(matches!(refused, Err(KvError::NoLeader { .. })), "{refused:?}");
    let key = format!("before/{}", NodeId::of(&left.public_key()));
    assert_eq!(root.get_local(&key).await.unwrap().unwrap().value, b"before");

    cluster.nodes[1].timing = Timing::Network(Pace::Near);
    cluster.nodes[1].restart();
    cluster.introduce();
    cluster.nodes[0].ready().await;
    cluster.nodes[0].wait_no_condition("consensus-no-leader").await;
    cluster.nodes[1].ready().await;
    cluster.nodes.pop();
    cluster.check("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_starts_without_a_quorum_is_leaderless_and_not_hanging() {
    let mut cluster = Cluster::found().await;
    cluster.grow().await;
    futures::future::join_all(cluster.nodes.iter_mut().map(Node::stop)).await;
    for node in &mut cluster.nodes {
        node.timing = Timing::Network(Pace::Near);
    }
    cluster.nodes[0].restart();
    cluster.introduce();
    // etcd serves nobody then, which must not be taken for hanging.
    cluster.nodes[0].wait_for("leaderless", |status| status.phase == Phase::Leaderless).await;
    cluster.nodes[0].wait_condition("consensus-no-leader").await;
    cluster.nodes[1].restart();
    cluster.introduce();
    cluster.all_ready().await;
    cluster.nodes[0].wait_no_condition("consensus-no-leader").await;
    cluster.check("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_changed_by_the_key_of_their_node_and_every_change_can_be_repeated() {
    let mut cluster = Cluster::found().await;
    cluster.grow().await;
    let founder = &cluster.nodes[0];
    let second = cluster.nodes[1].public_key();
    let membership = founder.consensus().membership().clone();

    let stranger = Node::new().public_key();
    let error = membership.promote("test/promote", &stranger, PATIENCE).await.unwrap_err();
    assert!(matches!(error, MembershipError::NotAMember(id) if id == NodeId::of(&stranger)), "{error:?}");
    let members = membership.members().await.unwrap();
    assert_eq!(membership.remove("test/remove", &stranger).await.unwrap(), members);
    assert_eq!(membership.add_learner("test/add", &second).await.unwrap(), members);
    assert_eq!(membership.promote("test/promote", &second, PATIENCE).await.unwrap(), members);

    // A learner that never starts is not promoted, is removed, and added again in the same second gets another id.
    let absent = Node::new().public_key();
    let budget = Duration::from_millis(200);
    let added = membership.add_learner("test/add", &absent).await.unwrap();
    let first_id = added.iter().find(|member| member.is_learner).unwrap().id;
    let error = membership.promote("test/promote", &absent, budget).await.unwrap_err();
    assert!(matches!(error, MembershipError::NotInSync { .. }), "{error:?}");
    assert_eq!(membership.remove("test/remove", &absent).await.unwrap(), members);
    let added = membership.add_learner("test/add", &absent).await.unwrap();
    assert_ne!(added.iter().find(|member| member.is_learner).unwrap().id, first_id);
    membership.remove("test/remove", &absent).await.unwrap();

    let leader = usize::from(!cluster.nodes[0].ready().await.is_leader());
    let (leader, follower) = (&cluster.nodes[leader], &cluster.nodes[1 - leader]);
    let refused = follower.consensus().membership().move_leader("test/move", &follower.public_key()).await;
    assert!(matches!(refused, Err(MembershipError::NotTheLeader)), "{refused:?}");
    leader.consensus().membership().move_leader("test/move", &follower.public_key()).await.unwrap();
    follower.wait_for("leader", |status| status.is_ready() && status.is_leader()).await;
    leader.wait_for("follower", |status| status.is_ready() && !status.is_leader()).await;
    cluster.stop().await;
}
