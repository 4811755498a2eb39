//! Three members on a machine that is busy: raft's timing has a margin, so that nobody elects anybody. In a process of its own,
//! since it takes every processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "member/cluster.rs"]
mod cluster;
#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "member/node.rs"]
mod node;

use cluster::Cluster;

/// How long it is looked at.
const TIME: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_elected_while_every_processor_is_busy() {
    let cluster = Cluster::of_three().await;
    let before = cluster.all_ready().await;
    let stop = Arc::new(AtomicBool::new(false));
    let processors = std::thread::available_parallelism().unwrap().get();
    let loops: Vec<_> = (0..processors)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    sleep(TIME).await;
    stop.store(true, Ordering::Relaxed);
    loops.into_iter().for_each(|thread| thread.join().unwrap());
    let after = cluster.all_ready().await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.raft_term, after.raft_term, "there was an election: {after:?}");
        assert_eq!(before.leader, after.leader);
    }
    cluster.stop().await;
}
