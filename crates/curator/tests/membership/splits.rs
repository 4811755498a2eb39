//! Clusters whose members split the keys of their data, with real etcds. What the node side of that reports is written here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polis_consensus::Transaction;
use polis_curator::membership::{Budgets, EnqueueError, Members, MembersStatus};
use polis_curator::{Heartbeats, LeaderState, NodeRecord, State, StateError, layout};
use polis_identity::NodeId;
use polis_proto::curator_state::{NodeEnrolment, SplitReport};
use polis_secret::Secret32;
use polis_unlock::{Scheme, SignedMemberList, Standing};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::common::PATIENCE;
use crate::town::Town;

const LOOK: Duration = Duration::from_millis(20);

/// What a node does about a new list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Diligence {
    /// It keeps the list, splits its key, and reports both.
    Splits,
    /// The same for lists that announce a change; of others it does not hear.
    SplitsForChanges,
    /// It keeps the list, and reports that only.
    Hears,
    /// Nothing.
    Away,
}

/// Makes a node one that encrypts its data and can split its key.
async fn encrypt(town: &Town, node: NodeId, share_key: &[u8]) {
    town.with_leader("encrypt", async |leader, _| {
        leader
            .update_node("test/encrypt", &node, |record| {
                let record = record.expect("it is there").clone();
                Ok::<_, StateError>(Some(NodeRecord { cluster_unlock_key: Some(Secret32::new([7; 32])), ..record }))
            })
            .await?;
        let enrolment = NodeEnrolment {
            share_key: share_key.to_vec(),
            split: Some(SplitReport::default()),
            ..NodeEnrolment::default()
        };
        leader
            .transact("test/enrolment", Transaction::new().put(layout::enrolment(&node), enrolment.encode_to_vec()))
            .await
    })
    .await;
}

/// What the nodes do, until it is stopped.
async fn follow_lists(town: &Town, nodes: watch::Receiver<BTreeMap<NodeId, Diligence>>) {
    loop {
        sleep(LOOK).await;
        let (leader, _) = town.leader().await;
        let diligences = nodes.borrow().clone();
        for (node, diligence) in diligences {
            // A leader that was lost, or a change that was faster: the next look tells.
            let _ = follow(&leader, node, diligence).await;
        }
    }
}

async fn follow(leader: &LeaderState, node: NodeId, diligence: Diligence) -> Result<(), StateError> {
    if diligence == Diligence::Away {
        return Ok(());
    }
    let Some(list) = list(leader.state()).await? else { return Ok(()) };
    let list = list.list();
    let has_change = list.members().iter().any(|member| member.standing != Standing::Stays);
    if diligence == Diligence::SplitsForChanges && !has_change {
        return Ok(());
    }
    let key = layout::enrolment(&node);
    let Some(known) = leader.get_message::<NodeEnrolment>(&key).await? else { return Ok(()) };
    let mut enrolment = known.value.clone();
    enrolment.members_epoch = Some(list.epoch().into());
    if matches!(diligence, Diligence::Splits | Diligence::SplitsForChanges)
        && let Some(own) = list.member(&node)
    {
        let holders = list.members().iter().filter(|member| member.node_id != node);
        enrolment.split = Some(SplitReport {
            epoch: Some(list.epoch().into()),
            shares_needed: Scheme::for_member(list, own.standing).unwrap().shares_needed().into(),
            holders: holders.map(|member| member.node_id.to_string()).collect(),
            verified: true,
            list_epoch: None,
        });
    }
    if enrolment != known.value {
        let transaction = Transaction::new().if_modified_at(key.as_str(), known.revision);
        leader.transact("test/report", transaction.put(key, enrolment.encode_to_vec())).await?;
    }
    Ok(())
}

async fn list(state: &State) -> Result<Option<SignedMemberList>, StateError> {
    let authority = state.authority_certificate().await?;
    let found = state.get_message(&layout::epoch()).await?;
    Ok(found.map(|found| SignedMemberList::verify(found.value, &authority).unwrap()))
}

/// The status, once it is as wanted.
async fn status(town: &Town, what: &str, wanted: impl Fn(&MembersStatus) -> bool) -> MembersStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (leader, members) = town.leader().await;
        let status = members.status(&leader).await;
        if let Ok(status) = &status
            && wanted(status)
        {
            return status.clone();
        }
        assert!(Instant::now() < deadline, "{what}: {status:?}\n{}", town.describe().await);
        sleep(LOOK).await;
    }
}

/// Waits until these nodes say that a removal is not finished, or say so no more.
async fn conditions<const N: usize>(town: &Town, nodes: [NodeId; N], raised: bool) {
    let deadline = Instant::now() + PATIENCE;
    for node in nodes {
        while town.has_condition(node, "removal-unfinished").await != raised {
            assert!(Instant::now() < deadline, "{node}: not {raised}\n{}", town.describe().await);
            sleep(LOOK).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_follow_splits() {
    let town = Arc::new(Town::found().await);
    let founder = town.founder.node_id();
    let (second, third) = (town.add_node().await, town.add_node().await);
    let keyless = town.add_node().await;
    for node in [founder, second, third] {
        encrypt(&town, node, &[9; 32]).await;
    }
    encrypt(&town, keyless, &[]).await;
    let refused = {
        let (leader, members) = town.leader().await;
        members.enqueue_join(&leader, &keyless).await.unwrap_err()
    };
    assert!(matches!(refused, EnqueueError::NoShareKey(node) if node == keyless), "{refused:?}");

    let all = |diligence: [Diligence; 3]| [founder, second, third].into_iter().zip(diligence).collect();
    use Diligence::{Away, Hears, Splits, SplitsForChanges};
    let (diligences, followed) = watch::channel(all([Splits, Splits, Away]));
    let followers = tokio::spawn({
        let town = Arc::clone(&town);
        async move { follow_lists(&town, followed).await }
    });
    town.join(second).await;
    town.settled(&[founder, second]).await;
    let two = status(&town, "two", |status| status.cold_start.as_ref().is_some_and(|it| it.behind.is_empty())).await;
    assert_eq!(two.cold_start.unwrap().summary, "local until 3");

    // The third starts and catches up, and gets no vote before it has split its key.
    town.join(third).await;
    let waits = |status: &MembersStatus| {
        status.change.as_ref().is_some_and(|change| {
            change.waiting_for.contains("split the keys") && change.waiting_for.contains(&third.to_string())
        })
    };
    let waiting = status(&town, "it waits for the split", waits).await;
    assert_eq!((waiting.margin.voters, waiting.survey.members.len()), (2, 3), "{waiting:?}");
    diligences.send_replace(all([Splits, Splits, Splits]));
    town.settled(&[founder, second, third]).await;
    let settled = |status: &MembersStatus| status.cold_start.as_ref().is_some_and(|it| it.behind.is_empty());
    let three = status(&town, "all have split their keys", settled).await.cold_start.unwrap();
    assert_eq!((&*three.summary, three.needed, &*three.remark), ("3 members, any 2 open", Some(2), ""));

    // One that goes is not waited for; but until all have heard of it, that is said.
    diligences.send_replace(all([Splits, SplitsForChanges, Away]));
    town.leave(third).await;
    town.settled(&[founder, second]).await;
    let unfinished = |status: &MembersStatus| {
        status.unfinished.iter().any(|removal| removal.node == third && removal.lacking == [second].into())
    };
    let told = status(&town, "the second has not heard", unfinished).await;
    assert!(told.unfinished[0].text.contains("is not finished until"), "{told:?}");
    // Every member says so, and not the leader alone.
    conditions(&town, [founder, second], true).await;
    // Nor does it hear of its own removal; and while it has not, it could help the third as a member could.
    diligences.send_replace(all([Splits, Away, Away]));
    town.leave(second).await;
    town.settled(&[founder]).await;
    status(&town, "the second has still not heard", unfinished).await;
    // To whom it has given shares since it has last told, nobody knows: all nodes are to hear of its removal.
    let mut all_hear: BTreeMap<NodeId, Diligence> = all([Splits, Hears, Hears]);
    all_hear.insert(keyless, Hears);
    diligences.send_replace(all_hear);
    status(&town, "both are finished", |status| status.unfinished.is_empty()).await;
    conditions(&town, [founder], false).await;

    // Back again, they split their keys anew.
    diligences.send_replace(all([Splits, Splits, Splits]));
    for (joiner, members) in [(second, vec![founder, second]), (third, vec![founder, second, third])] {
        town.join(joiner).await;
        town.settled(&members).await;
    }
    status(&town, "all have split their keys", settled).await;
    followers.abort();
    let _ = followers.await;
    Arc::into_inner(town).expect("nobody follows any more").stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_never_splits_holds_up_nobody_for_ever() {
    use Diligence::{Hears, Splits};
    let town = Arc::new(Town::found().await);
    let founder = town.founder.node_id();
    let others = [town.add_node().await, town.add_node().await, town.add_node().await];
    let [second, silent, last] = others;
    for node in [founder, second, silent, last] {
        encrypt(&town, node, &[9; 32]).await;
    }
    let (diligences, followed) = watch::channel(BTreeMap::from([(founder, Splits)]));
    let do_all = |silent_does| {
        let all = [(founder, Splits), (second, Splits), (silent, silent_does), (last, Splits)];
        diligences.send_replace(all.into());
    };
    do_all(Splits);
    let followers = tokio::spawn({
        let town = Arc::clone(&town);
        async move { follow_lists(&town, followed).await }
    });
    for (joiner, settled) in [(second, vec![founder, second]), (silent, vec![founder, second, silent])] {
        town.join(joiner).await;
        town.settled(&settled).await;
    }
    // It runs and answers, and does not split its key any more. The curators would wait for half a minute.
    do_all(Hears);
    let impatient = tokio::spawn({
        let town = Arc::clone(&town);
        async move {
            loop {
                let (leader, _) = town.leader().await;
                let (consensus, heartbeats) = (town.consensus(*leader.node_id()).await, Heartbeats::default());
                heartbeats.begin(Instant::now());
                others.iter().for_each(|node| heartbeats.stamp(*node, Instant::now()));
                let budgets = Budgets { split: Duration::from_secs(1), ..Budgets::default() };
                let _ = Members::with_budgets(consensus, heartbeats, budgets).lead(leader).await;
            }
        }
    });
    let all = [founder, second, silent, last];
    town.join(last).await;
    town.settled(&all).await;
    let is_behind = |status: &MembersStatus| status.cold_start.as_ref().is_some_and(|it| it.behind == [silent].into());
    let behind = status(&town, "one is behind", is_behind).await.cold_start.unwrap();
    assert!(behind.remark.contains(&silent.to_string()), "{behind:?}");
    // Its own removal waits for it even less.
    town.leave(silent).await;
    town.settled(&[founder, second, last]).await;
    for task in [followers, impatient] {
        task.abort();
        let _ = task.await;
    }
    Arc::into_inner(town).expect("nobody follows any more").stop().await;
}
