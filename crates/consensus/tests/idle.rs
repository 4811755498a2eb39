//! An idle member sleeps. In a process of its own, since what is counted is what the whole process does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use polis_consensus::CHECK_INTERVAL;
use tokio::time::timeout;

#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "member/node.rs"]
mod node;

use node::Node;

/// How often each thread of this process has gone to sleep of its own will.
fn voluntary_context_switches() -> BTreeMap<OsString, u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let count = |status: String| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
    };
    let of_task = |task: fs::DirEntry| {
        let switches = count(fs::read_to_string(task.path().join("status")).ok()?)?;
        Some((task.file_name(), switches))
    };
    tasks.filter_map(|task| of_task(task.ok()?)).collect()
}

/// Most voluntary context switches of an idle member in the time of two checks: a node is to make fewer than twenty. The checks
/// take about ten, so a timer that ticks once a second is over it.
const IDLE_SWITCHES: u64 = 19;

/// How many times that long an idle member is looked at.
const WINDOWS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_member_sleeps_and_publishes_nothing() {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    let mut watch = kv.watch("/", kv.put("test/put", "/key", "value").await.unwrap());
    let mut status = node.consensus().status();
    // What belongs to the start is over: the cluster's version is found out after the first write.
    let _ = timeout(Duration::from_secs(1), watch.next()).await;
    status.mark_unchanged();
    // On a busy machine etcd logs that it was slow, and each line wakes the process; so several windows are looked at, and
    // the quietest counts: what the process does by itself, such as a timer that ticks, is in all of them.
    let two_checks = CHECK_INTERVAL * 2;
    let mut quietest = u64::MAX;
    for _ in 0..WINDOWS {
        let before = voluntary_context_switches();
        assert!(timeout(two_checks, watch.next()).await.is_err());
        let switches = voluntary_context_switches();
        // A thread of the blocking pool may have ended meanwhile, or begun.
        let made = switches.iter().map(|(task, after)| after - before.get(task).unwrap_or(&0));
        quietest = quietest.min(made.sum());
        if quietest <= IDLE_SWITCHES {
            break;
        }
    }
    println!("{quietest} voluntary context switches in {two_checks:?}");
    assert!(!status.has_changed().unwrap(), "{:?}", status.borrow());
    assert!(quietest <= IDLE_SWITCHES, "{quietest} voluntary context switches in {two_checks:?}");
    node.stop().await;
}
