//! Members that are not where they were, and ways that break.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polis_unlock_service::KnownAddresses;
use tokio::sync::watch;

use crate::proxy::Proxy;
use crate::world::{OPEN_WITHIN, World, all_open, finish, free_address};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_addresses_are_tried_at_once() {
    let world = World::new(3);
    let right = Arc::clone(&world.addresses.borrow());
    let wrong: KnownAddresses =
        right.keys().map(|id| (*id, vec![free_address(Ipv4Addr::new(127, 11, 255, 2))])).collect();
    world.addresses.send_replace(Arc::new(wrong));
    let nodes: Vec<_> = (0..2).map(|index| world.start(index)).collect();
    for node in &nodes {
        node.wait_status("nobody is found", |status| status.failures.len() == 2 && status.seconds >= 2).await;
    }
    assert!(!nodes.iter().any(|node| node.is_open()));
    let began = std::time::Instant::now();
    world.addresses.send_replace(right);
    all_open(&nodes).await;
    eprintln!("after the addresses were known: {:?}", began.elapsed());
    assert!(began.elapsed() < OPEN_WITHIN, "{:?}", began.elapsed());
    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_calls_is_found_where_it_calls_from() {
    let world = World::new(3);
    let nowhere = watch::Sender::new(Arc::<KnownAddresses>::default());
    let first = world.start_with(0, &world.list, |parts| parts.surroundings.addresses = nowhere.subscribe());
    first.wait_status("nobody is known", |status| status.failures.len() == 2).await;
    assert!(first.status.borrow().failures.values().all(|failure| failure == "its address is not known"));
    let nodes = [first, world.start(1)];
    let took = all_open(&nodes).await;
    eprintln!("one that is found because it calls: all open {took:?} after it started");
    assert!(took < OPEN_WITHIN, "{took:?}");
    finish(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_cut_off_are_asked_for_again() {
    // In the handshake, after it, in the answer, and right before its end.
    let cuts = vec![1, 700, 900, 1_050, 1_100, 1_150];
    let count = cuts.len();
    let world = World::new(3);
    let first = vec![world.start(0), world.start(1)];
    all_open(&first).await;
    let [stays, goes] = <[_; 2]>::try_from(first).map_err(|_| ()).unwrap();
    goes.finish().await;
    let proxy = Proxy::start(world.node(2).address.ip(), stays.node.address, cuts).await;
    let ways = watch::Sender::new(Arc::new(BTreeMap::from([(stays.node.id, vec![proxy.address])])));
    let third = world.start_with(2, &world.list, |parts| parts.surroundings.addresses = ways.subscribe());
    third.open().await;
    let connections = proxy.connections.load(Ordering::SeqCst);
    assert!((2..=count + 1).contains(&connections), "{connections} connections");
    finish([stays, third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_restarts_is_found_again_over_the_old_line() {
    let world = World::new(5);
    // Too few, so that the two go on asking each other over the lines that they have.
    let first = world.start(0);
    for _ in 0..2 {
        let second = world.start(1);
        let has_one =
            |status: &polis_unlock_service::UnlockStatus| status.progress.counts.is_some_and(|counts| counts.have == 1);
        first.wait_status("it has a share", has_one).await;
        second.wait_status("it has a share", has_one).await;
        second.finish().await;
    }
    let nodes = [first, world.start(1), world.start(2)];
    let took = all_open(&nodes).await;
    assert!(took < OPEN_WITHIN, "{took:?}");
    finish(nodes).await;
}
