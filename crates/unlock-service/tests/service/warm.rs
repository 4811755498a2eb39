//! Others run with quorum: they have the key itself.

use polis_secret::Secret32;
use polis_unlock::{ClusterUnlockKey, ClusterWord, Epoch, NoDrill, PeerAnswer, Proof, Reason, SignedMemberList};
use polis_unlock_service::{DrillError, DrillOutcome, Drilled, Exercise, Owner, drill, drills};
use tokio::sync::watch;

use crate::world::{OPEN_WITHIN, PATIENCE, Running, World, all_open, finish};

/// Two of three run; the third one is off.
async fn two_of_three() -> (World, Vec<Running>) {
    let world = World::new(3);
    let nodes = vec![world.start(0), world.start(1)];
    all_open(&nodes).await;
    world.running.nodes.lock().unwrap().extend(nodes.iter().map(|node| node.node.id));
    (world, nodes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_reboots_is_given_its_key() {
    let (world, nodes) = two_of_three().await;
    for _ in 0..5 {
        let third = world.start(2);
        let opened = third.open().await;
        let took = opened.at.duration_since(third.began);
        eprintln!("one that reboots: open {took:?} after its start");
        assert!(took < OPEN_WITHIN, "{took:?}");
        assert_eq!((opened.proof, opened.tried), (Proof::CheckValue, 1));
        third.finish().await;
    }
    // Without its unlock file it takes the cluster's word for it.
    let third = world.start_with(2, &world.list, |parts| parts.owner.file = None);
    assert_eq!(third.open().await.proof, Proof::Word);
    third.finish().await;
    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_key_is_no_answer() {
    let (world, nodes) = two_of_three().await;
    let dead = ClusterUnlockKey::new(Secret32::random());
    world.running.keys.lock().unwrap().insert(world.node(2).id, ClusterWord::Key(dead));
    let third = world.start(2);
    let opened = third.open().await;
    eprintln!("one to which a dead key is given: open {:?} after its start", opened.at.duration_since(third.began));
    assert_eq!((opened.proof, opened.tried), (Proof::CheckValue, 2));
    assert!(!third.status.borrow().alarms.is_empty());
    third.finish().await;
    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_not_up_is_given_nothing_until_it_is() {
    let (world, nodes) = two_of_three().await;
    let third_id = world.node(2).id;
    let word = world.running.keys.lock().unwrap().insert(third_id, ClusterWord::NotUp).unwrap();
    let third = world.start(2);
    let refused = |status: &polis_unlock_service::UnlockStatus| {
        let is_refused = |answer: &PeerAnswer| matches!(answer, PeerAnswer::Refused { reason: Reason::NotUp, .. });
        let peers = &status.progress.peers;
        peers.len() == 2 && peers.iter().all(|peer| peer.answer.as_ref().is_some_and(is_refused))
    };
    let status = third.wait_status("both refuse", refused).await;
    assert!(status.describe().contains("refuses: this node is not UP in the cluster"), "{}", status.describe());
    assert!(third.node.lock().await.peers.iter().all(|peer| peer.answer.starts_with("refused: ")));
    assert!(!third.is_open());
    world.running.keys.lock().unwrap().insert(third_id, word);
    third.open().await;
    third.finish().await;
    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drills_take_the_way_of_shares() {
    let (world, nodes) = two_of_three().await;
    let owner = |file| Owner { id: nodes[0].node.id, authority: world.authority.certificate().clone(), file };
    let key = || nodes[0].node.key.clone();
    let began = std::time::Instant::now();
    let file = world.file(&nodes[0].node, &world.list);
    let verified = drill(&nodes[0].surroundings, owner(Some(file.clone())), key()).await;
    eprintln!("a drill: {:?}", began.elapsed());
    assert_eq!(verified.unwrap(), Epoch::FIRST);

    let nothing = drill(&nodes[0].surroundings, owner(None), key()).await;
    assert!(matches!(nothing, Err(DrillError::Nothing(_))), "{nothing:?}");

    // Somebody has changed what the shares give: each is the one that was made, and together they give nothing.
    let mut useless = file;
    let other = ClusterUnlockKey::new(Secret32::random());
    useless.current.check_value = other.check_value();
    let failed = drill(&nodes[0].surroundings, owner(Some(useless)), other).await;
    assert!(matches!(failed, Err(DrillError::Failed(_))), "{failed:?}");

    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_split_is_drilled_and_one_that_nobody_answers_says_who_is_missing() {
    let (mut world, nodes) = two_of_three().await;
    let [first, second] = <[_; 2]>::try_from(nodes).map_err(|_| ()).unwrap();
    let exercise = |number, world: &World, list: &SignedMemberList| {
        let (id, authority) = (first.node.id, world.authority.certificate().clone());
        let owner = Owner { id, authority, file: Some(world.file(&first.node, list)) };
        Some(Exercise { number, owner, key: first.node.key.clone() })
    };
    let exercises = watch::Sender::new(None);
    let drilled = watch::Sender::new(Drilled::default());
    let mut outcome = drilled.subscribe();
    let runs = {
        let (surroundings, exercises) = (first.surroundings.clone(), exercises.subscribe());
        tokio::spawn(async move { drills(&surroundings, exercises, drilled).await })
    };
    let mut wait = async |exercise, outcome_of_it: DrillOutcome| {
        let expected = Drilled { exercise, outcome: outcome_of_it };
        let found = tokio::time::timeout(PATIENCE, outcome.wait_for(|drilled| *drilled == expected)).await;
        assert!(found.is_ok(), "{expected:?} never came: {}", first.status.borrow().describe());
    };
    wait(0, DrillOutcome::NotYet).await;
    exercises.send_replace(exercise(1, &world, &world.list));
    wait(1, DrillOutcome::Verified(Epoch::FIRST)).await;
    let without = Owner { id: first.node.id, authority: world.authority.certificate().clone(), file: None };
    exercises.send_replace(Some(Exercise { number: 2, owner: without, key: first.node.key.clone() }));
    wait(2, DrillOutcome::Nothing(NoDrill::NoFile)).await;

    second.finish().await;
    exercises.send_replace(exercise(3, &world, &world.list));
    wait(3, DrillOutcome::UnderWay).await;
    let status = first.wait_status("both are missing", |status| status.failures.len() == 2).await;
    assert!(status.describe().starts_with("unlocked by 0 of 1 peers; no answer from "), "{}", status.describe());

    // Another split takes the place of the drill that waits: one more member, who is there.
    world.add();
    let later = world.later_list();
    let others = [world.start_with(1, &later, |_| {}), world.start_with(3, &later, |_| {})];
    first.members.take_over(later.clone()).await.unwrap();
    exercises.send_replace(exercise(4, &world, &later));
    wait(4, DrillOutcome::Verified(Epoch::FIRST.next())).await;
    runs.abort();
    finish(others).await;
    first.finish().await;
}
