//! Whole clusters: growing, shrinking, losing, handing over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polis_consensus::Transaction;
use polis_curator::layout;
use polis_curator::membership::{Operation, Refusal, RemovalError};
use polis_unlock::{Epoch, SignedMemberList};
use tokio::time::timeout;

use crate::common::PATIENCE;
use crate::town::Town;

/// The epoch that the state tells.
async fn epoch(town: &Town) -> Epoch {
    let authority = town.founder.state().authority_certificate().await;
    town.with_leader("epoch", async |leader, _| {
        let list = leader.get_message(&layout::epoch()).await.map_err(|error| format!("{error:?}"))?;
        let authority = match &authority {
            Ok(authority) => authority.clone(),
            Err(_) => leader.state().authority_certificate().await.map_err(|error| format!("{error:?}"))?,
        };
        Ok::<_, String>(SignedMemberList::verify(list.unwrap().value, &authority).unwrap().list().epoch())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_to_five_and_shrinks_to_one_while_a_client_writes() {
    let town = Arc::new(Town::found().await);
    let founder = town.founder.node_id();
    let mut members = vec![founder];
    let mut joiners = Vec::new();
    for _ in 0..4 {
        joiners.push(town.add_node().await);
    }
    // A client whose writes are counted: each is the number that comes next, and is acknowledged before the next begins.
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = tokio::spawn({
        let (town, stop, written) = (Arc::clone(&town), Arc::clone(&stop), Arc::clone(&written));
        async move {
            let mut number = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                number += 1;
                let put = Transaction::new().put(format!("test/{number:08}"), number.to_string());
                let deadline = Instant::now() + PATIENCE;
                while let Err(error) = town.leader().await.0.transact("test/write", put.clone()).await {
                    assert!(Instant::now() < deadline, "write {number} is not taken: {error:?}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                written.store(number, Ordering::SeqCst);
                // As fast as it can it would only take the processor from the members.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let began = Instant::now();
    let first_epoch = epoch(&town).await;
    for (index, joiner) in joiners.iter().enumerate() {
        town.join(*joiner).await;
        members.push(*joiner);
        if index == 1 {
            town.settled(&members).await;
            let root = town.consensus(*joiner).await.kv_root();
            root.put("test/third", "third", "written").await.unwrap();
            println!("one to three members and a write through the third: {} ms", began.elapsed().as_millis());
        }
    }
    town.settled(&members).await;
    println!("one to five members: {} ms", began.elapsed().as_millis());
    assert_eq!(epoch(&town).await.epoch, first_epoch.epoch + 8, "each change is two lists");
    let (leader, of_leader) = town.leader().await;
    let status = of_leader.status(&leader).await.unwrap();
    assert_eq!((status.margin.voters, status.margin.spare()), (5, 2), "{status:?}");
    assert!(status.queue.is_empty(), "{status:?}");

    // All of them but one go, the founder first (window W25).
    while members.len() > 1 {
        let gone = members.remove(0);
        town.leave(gone).await;
        town.settled(&members).await;
    }
    println!("and back to one: {} ms", began.elapsed().as_millis());
    stop.store(true, Ordering::SeqCst);
    writer.await.unwrap();
    let last = members[0];
    let kept = town.consensus(last).await.kv_root().list("test/0").await.unwrap().entries;
    let written = written.load(Ordering::SeqCst);
    assert!(written > 20, "the client was held up: {written}");
    assert_eq!(kept.len() as u64, written, "every acknowledged write is there");

    let error = {
        let (leader, of_leader) = town.leader().await;
        of_leader.request_removal(&leader, &last, "a test").await.unwrap_err()
    };
    assert!(matches!(error, RemovalError::Refused { source: Refusal::LastMember(_), .. }), "{error:?}");
    Arc::into_inner(town).expect("the writer has ended").stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_member_is_replaced_and_a_living_one_is_not_removed_instead() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let (second, third, fourth) = (town.add_node().await, town.add_node().await, town.add_node().await);
    town.join(second).await;
    town.join(third).await;
    town.settled(&[founder, second, third]).await;
    town.kill(third).await;
    let (leader, members) = town.leader().await;
    let error = members.request_removal(&leader, &second, "a mistake").await.unwrap_err();
    let RemovalError::Refused { source: Refusal::Quorum(verdict), .. } = error else { panic!("{error:?}") };
    assert_eq!((verdict.before.reachable, verdict.after.reachable, verdict.after.quorum()), (2, 1, 2));
    assert!(verdict.after.unreachable.contains(&third) && verdict.after.unreachable.len() == 1);
    town.leave(third).await;
    town.settled(&[founder, second]).await;
    town.join(fourth).await;
    town.settled(&[founder, second, fourth]).await;
    let removed_certificate = town
        .with_leader("revocations", async |leader, _| {
            let list = leader.peer_revocations().await?;
            Ok::<_, polis_curator::StateError>(list.value.revoked().len())
        })
        .await;
    assert_eq!(removed_certificate, 1, "the dead member's certificate is revoked");
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_is_taken_and_given_back_makes_a_new_member() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let (second, third) = (town.add_node().await, town.add_node().await);
    town.join(second).await;
    town.join(third).await;
    town.settled(&[founder, second, third]).await;
    let before = town.consensus(third).await.status().borrow().member_id;
    town.leave(third).await;
    town.settled(&[founder, second]).await;
    town.join(third).await;
    town.settled(&[founder, second, third]).await;
    let third = town.consensus(third).await;
    assert_ne!(timeout(PATIENCE, third.ready()).await.unwrap().member_id, before);
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_disagree_with_the_members_are_corrected() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let (second, third) = (town.add_node().await, town.add_node().await);
    town.join(second).await;
    town.join(third).await;
    town.settled(&[founder, second, third]).await;
    // A role is lost, another is given to nobody's member, and a member comes whose node nobody knows.
    let stray = town.add_node().await;
    town.with_leader("roles", async |leader, _| {
        leader
            .update_node("test/roles", &founder, |record| {
                let mut changed = record.expect("it is there").clone();
                changed.roles.consensus_member = None;
                Ok::<_, polis_curator::StateError>(Some(changed))
            })
            .await?;
        let role = leader.node(&second).await?.expect("it is there").value.roles.consensus_member;
        leader
            .update_node("test/roles", &stray, |record| {
                let mut changed = record.expect("it is there").clone();
                changed.roles.consensus_member = role.clone();
                Ok::<_, polis_curator::StateError>(Some(changed))
            })
            .await
    })
    .await;
    let stranger = polis_identity::NodeKey::generate().public();
    town.founder.consensus.membership().add_learner("test/stranger", &stranger).await.unwrap();
    let began = Instant::now();
    town.settled(&[founder, second, third]).await;
    // A call of a deposed leader comes late: the node is known, and nobody wants it as a member.
    town.founder.consensus.membership().add_learner("test/late", &town.public_key(stray).await).await.unwrap();
    town.settled(&[founder, second, third]).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let (leader, of_leader) = town.leader().await;
    let status = of_leader.status(&leader).await.unwrap();
    assert_eq!(status.survey.members.len(), 3, "{status:?}");
    assert!(!matches!(status.change, Some(change) if change.operation == Operation::Add(stray)));
    town.stop().await;
}
