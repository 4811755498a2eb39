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

/// How long it is looked at, in a run and in one with `POLIS_SOAK=1`.
const TIME: Duration = Duration::from_secs(60);
const TIME_IN_SOAK: Duration = Duration::from_secs(600);

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
    let is_soak = std::env::var_os("POLIS_SOAK").is_some_and(|value| value == "1");
    let time = if is_soak { TIME_IN_SOAK } else { TIME };
    sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    loops.into_iter().for_each(|thread| thread.join().unwrap());
    let after = cluster.all_ready().await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.raft_term, after.raft_term, "there was an election: {after:?}");
        assert_eq!(before.leader, after.leader);
    }
    println!("no election within {} s", time.as_secs());
    cluster.stop().await;
}
