//! How long the cluster makes its users wait, with the bars of a machine that does nothing else; here they are given three times
//! the time, as others may be at work. A process of its own, so that no other test of this crate runs beside it. `make bench` measures the rest.

use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_consensus::{Pace, Timing};
use tokio::time::{sleep, timeout};

#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "member/cluster.rs"]
mod cluster;
#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "member/node.rs"]
mod node;

use cluster::Cluster;
use node::Node;

/// Times by which a bar may be missed here.
const SLACK: u32 = 3;

fn within(what: &str, took: Duration, bar: Duration) {
    println!("{what}: {} ms", took.as_millis());
    assert!(took <= bar * SLACK, "{what}: {took:?}, at most {bar:?}");
}

/// How long a write may take before this is a hang and not a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes through the nodes in turn until one write is acknowledged.
async fn first_write(nodes: &[&Node]) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        assert!(tokio::time::Instant::now() < deadline, "no write is acknowledged within {PATIENCE:?}");
        for node in nodes {
            let root = node.consensus().kv_root();
            let written = timeout(Duration::from_millis(100), root.put("test/put", "key", "value"));
            if matches!(written.await, Ok(Ok(_))) {
                return;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_a_cold_start_a_failover_and_a_stop_are_fast() {
    let mut cluster = Cluster::found().await;
    let began = Instant::now();
    let second = cluster.join(Node::new()).await;
    cluster.nodes.push(second);
    println!("two after {} ms", began.elapsed().as_millis());
    let third = cluster.join(Node::new()).await;
    cluster.nodes.push(third);
    first_write(&[&cluster.nodes[2]]).await;
    within("from one to three members and a write through the third", began.elapsed(), Duration::from_millis(480));
    let ready = cluster.all_ready().await;
    assert!(ready.iter().all(|status| status.timing.is_network()), "{ready:?}");

    // The leader's etcd is killed; it is started again, so that what counts is a write through the others.
    let leader = ready.iter().position(polis_consensus::Status::is_leader).unwrap();
    let followers: Vec<&Node> = (0..3).filter(|index| *index != leader).map(|index| &cluster.nodes[index]).collect();
    let began = Instant::now();
    cluster.nodes[leader].kill_etcd();
    first_write(&followers).await;
    within("from the death of the leader to a write", began.elapsed(), Duration::from_millis(1500));
    cluster.all_ready().await;

    // Everything at once, as when the power fails, and all are started again.
    cluster.nodes.iter().for_each(Node::kill_etcd);
    join_all(cluster.nodes.iter_mut().map(Node::stop)).await;
    for node in &mut cluster.nodes {
        node.layout.prepare_start().unwrap();
        node.timing = Timing::Network(Pace::default());
    }
    let began = Instant::now();
    for node in &mut cluster.nodes {
        node.restart();
    }
    cluster.introduce();
    first_write(&cluster.nodes.iter().collect::<Vec<_>>()).await;
    within("from the start of all to a write", began.elapsed(), Duration::from_millis(720));
    let timings = cluster.all_ready().await;
    assert!(timings.iter().all(|status| matches!(status.timing, Timing::Network(_))));

    let began = Instant::now();
    join_all(cluster.nodes.iter_mut().map(Node::stop)).await;
    within("the orderly stop of all", began.elapsed(), Duration::from_secs(1));
}
