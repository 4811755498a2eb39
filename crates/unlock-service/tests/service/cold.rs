//! All are locked, and nobody but they themselves can open them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polis_proto::unlock::{Counts as CountsMessage, get_lock_response};
use polis_unlock::{Counts, Proof};

use crate::world::{OPEN_WITHIN, World, all_open, finish};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_open_each_other() {
    for size in [2, 3, 5, 9] {
        let world = World::new(size);
        let nodes: Vec<_> = (0..size).map(|index| world.start(index)).collect();
        let took = all_open(&nodes).await;
        eprintln!("{size} members that start together: all open {took:?} after the last start");
        // Of nine, 72 connections are made by one process.
        assert!(size == 9 || took < OPEN_WITHIN, "{took:?}");
        for node in &nodes {
            assert_eq!(node.open().await.proof, Proof::CheckValue);
            assert_eq!(node.open().await.tried, 1);
        }
        finish(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_open_nothing_and_say_so_and_one_more_opens_all() {
    for (size, too_few) in [(3, 1), (5, 2)] {
        let world = World::new(size);
        let mut nodes: Vec<_> = (0..too_few).map(|index| world.start(index)).collect();
        let have = u8::try_from(too_few).unwrap() - 1;
        let counts = Counts { have, need: have + 1 };
        for node in &nodes {
            let is_so = |status: &polis_unlock_service::UnlockStatus| {
                let silent = status.progress.peers.iter().filter(|peer| peer.silent_since.is_some()).count();
                status.progress.counts == Some(counts) && silent == size - too_few && status.seconds >= 2
            };
            let status = node.wait_status("it knows who is missing", is_so).await;
            let missing = world.node(size - 1);
            let text = status.describe();
            let expected = format!("unlocked by {have} of {} peers; ", have + 1);
            assert!(text.starts_with(&expected), "{text}");
            // It began to be silent when it was first asked.
            assert!(
                text.contains(&format!(
                    "no answer from {} at {} for {} s",
                    missing.id,
                    missing.address.ip(),
                    status.seconds
                )),
                "{text}"
            );
            assert!(status.failures[&missing.id].contains("refuses connections"), "{:?}", status.failures);
            let lock = node.node.lock().await;
            assert_eq!(lock.state(), get_lock_response::State::Locked);
            assert!(lock.reason.starts_with(&expected), "{}", lock.reason);
            assert_eq!(lock.counts, Some(CountsMessage { have: have.into(), need: (have + 1).into() }));
            assert_eq!(lock.peers.len(), size - 1);
            assert_eq!((&lock.node_id, &lock.fingerprint[..]), (&node.node.id.to_string(), "ab"));
            assert_eq!(lock.no_recovery, "there is no recovery key");
        }
        // Nobody asks often any more, and two that have nothing more for each other do not keep each other busy.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = world.running.asked.swap(0, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked_later = world.running.asked.load(Ordering::SeqCst);
        eprintln!("{too_few} of {size} have asked each other {asked} times, and then {asked_later} times in 2 s");
        assert!(asked_later <= 2 * too_few, "{asked_later} requests");
        assert!(!nodes.iter().any(|node| node.is_open()));
        nodes.push(world.start(size - 1));
        let took = all_open(&nodes).await;
        eprintln!("{too_few} of {size}, and then one more: all open {took:?} after it started");
        assert!(took < OPEN_WITHIN, "{took:?}");
        let lock = nodes[0].node.lock().await;
        assert_eq!((lock.state(), &lock.reason[..]), (get_lock_response::State::Open, ""));
        finish(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_are_open_without_quorum_give_shares() {
    let world = World::new(3);
    let first = vec![world.start(0), world.start(1)];
    all_open(&first).await;
    // Nobody runs with quorum, and one of the two has gone again.
    let [stays, goes] = <[_; 2]>::try_from(first).map_err(|_| ()).unwrap();
    goes.finish().await;
    let nodes = vec![stays, world.start(2)];
    let took = all_open(&nodes).await;
    eprintln!("one member beside one that is open: {took:?}");
    assert!(took < OPEN_WITHIN, "{took:?}");
    finish(nodes).await;
}
