//! The queue, the budgets, and leaders that are cut off.

use std::sync::Arc;
use std::time::Duration;

use polis_curator::Heartbeats;
use polis_curator::membership::{Budgets, EnqueueError, Enqueued, Members, RemovalError};
use polis_identity::NodeKey;
use polis_proto::common::NodeState;
use tokio::time::{Instant, sleep};

use crate::common::PATIENCE;
use crate::town::Town;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_join_is_refused_with_the_reason() {
    let town = Town::found().await;
    let (leader, members) = town.leader().await;
    let founder = town.founder.node_id();
    assert_eq!(members.enqueue_join(&leader, &founder).await.unwrap(), Enqueued::AlreadyMember);
    let nobody = polis_identity::NodeId::of(&NodeKey::generate().public());
    let error = members.enqueue_join(&leader, &nobody).await.unwrap_err();
    assert!(matches!(error, EnqueueError::NoSuchNode(id) if id == nobody), "{error:?}");
    let error = members.request_removal(&leader, &nobody, "a test").await.unwrap_err();
    assert!(matches!(error, RemovalError::NoSuchNode(id) if id == nobody), "{error:?}");

    let node = town.add_node().await;
    for state in [NodeState::New, NodeState::Standby, NodeState::Decommissioned] {
        set_state(&leader, &node, state).await;
        let error = members.enqueue_join(&leader, &node).await.unwrap_err();
        assert!(matches!(error, EnqueueError::NotUp { state: found, .. } if found == state), "{error:?}");
    }
    set_state(&leader, &node, NodeState::Up).await;
    // In the eyes of one that has never heard of it.
    let deaf = Members::new(town.founder.consensus.clone(), Heartbeats::default());
    let error = deaf.enqueue_join(&leader, &node).await.unwrap_err();
    assert!(matches!(error, EnqueueError::NotHealthy { .. }), "{error:?}");
    assert!(error.to_string().contains("UNKNOWN"), "{error}");

    town.break_node(node).await;
    assert_eq!(members.enqueue_join(&leader, &node).await.unwrap(), Enqueued::Added);
    let again = town.with_leader("again", async |leader, members| members.enqueue_join(&leader, &node).await).await;
    assert_eq!(again, Enqueued::AlreadyWaiting);
    // A wish that is taken back, at whatever stage it is.
    town.leave(node).await;
    town.settled(&[founder]).await;
    town.stop().await;
}

async fn set_state(leader: &polis_curator::LeaderState, node: &polis_identity::NodeId, state: NodeState) {
    let changed = leader.update_node("test/state", node, |record| {
        let record = record.expect("it is there");
        Ok::<_, polis_curator::StateError>(Some(polis_curator::NodeRecord { state, ..record.clone() }))
    });
    changed.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joiner_that_never_starts_is_given_up_and_does_not_hold_up_the_next() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let (second, broken, third) = (town.add_node().await, town.add_node().await, town.add_node().await);
    town.join(second).await;
    town.settled(&[founder, second]).await;
    town.break_node(broken).await;
    // Beside the curators' own, one with less patience: two that act for the same leader do no harm to each other.
    let (leader, members) = town.leader().await;
    let heartbeats = Heartbeats::default();
    heartbeats.begin(Instant::now());
    for node in [second, broken, third] {
        heartbeats.stamp(node, Instant::now());
    }
    let budgets = Budgets { start: Duration::from_secs(1), rest: Duration::from_secs(3600), ..Budgets::default() };
    let consensus = town.consensus(*leader.node_id()).await;
    let impatient = Members::with_budgets(consensus, heartbeats.clone(), budgets);
    members.enqueue_join(&leader, &broken).await.unwrap();
    members.enqueue_join(&leader, &third).await.unwrap();
    let acting = tokio::spawn({
        let (impatient, leader) = (impatient.clone(), leader.clone());
        async move { impatient.lead(leader).await }
    });
    let deadline = Instant::now() + PATIENCE;
    let (mut learned, mut queued) = (false, None);
    while queued.is_none() {
        let status = members.status(&leader).await.unwrap();
        learned |= status.survey.members.iter().any(|member| member.member.is_learner);
        queued = status.queue.into_iter().find(|queued| queued.node == broken && queued.attempts > 0);
        assert!(Instant::now() < deadline, "it is not given up\n{}", town.describe().await);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(learned, "it was tried");
    let queued = queued.unwrap();
    assert!(queued.reason.contains("did not start within 1s"), "{queued:?}");
    let is_member = async {
        loop {
            let status = members.status(&leader).await.unwrap();
            let voters = status.survey.members.iter().zip(&status.nodes);
            if voters.filter(|(member, _)| !member.member.is_learner).any(|(_, node)| *node == third) {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_member).await.expect("the next one is not held up");
    acting.abort();
    let _ = acting.await;
    // Once it works, it comes by itself.
    town.mend_node(broken).await;
    town.settled(&[founder, second, broken, third]).await;
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_at_any_moment_leaves_nothing_that_the_next_does_not_finish() {
    let town = Arc::new(Town::found().await);
    let founder = town.founder.node_id();
    let (second, third) = (town.add_node().await, town.add_node().await);
    town.join(second).await;
    town.settled(&[founder, second]).await;
    // Others act for the leader, too, and are cut off after ever longer times; each takes up what it finds.
    let cutting = tokio::spawn({
        let town = Arc::clone(&town);
        async move {
            for round in 0_u64..60 {
                let (leader, _) = town.leader().await;
                let consensus = town.consensus(*leader.node_id()).await;
                let acting = Members::new(consensus, Heartbeats::default());
                let _ = tokio::time::timeout(Duration::from_millis(round * 3), acting.lead(leader)).await;
            }
        }
    });
    for _ in 0..2 {
        town.join(third).await;
        town.settled(&[founder, second, third]).await;
        town.leave(third).await;
        town.settled(&[founder, second]).await;
    }
    cutting.await.unwrap();
    town.settled(&[founder, second]).await;
    Arc::into_inner(town).expect("nobody else has it").stop().await;
}
