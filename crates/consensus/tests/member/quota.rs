//! A database that is really at its quota, on members that make room one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType};
use polis_consensus::KvError;
use tokio::time::{sleep, timeout};

use crate::cluster::Cluster;
use crate::node::Node;

/// Small enough to be full in a moment, and large enough that what etcd needs itself does not matter.
const QUOTA: u64 = 32 << 20;

/// Two rounds, as the one who leads hands over within the first: on a machine that does other things.
const ROOM_PATIENCE: Duration = Duration::from_secs(90);

/// Pause between two looks at whose turn it is: much shorter than a turn, which lasts as long as the member looks for it seldom.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

fn small() -> Node {
    let mut node = Node::new();
    node.quota_bytes = QUOTA;
    node
}

/// Numbers under which there are alarms.
async fn alarms(node: &Node) -> Vec<u64> {
    let mut client = node.raw_client().await;
    let found = client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await;
    found.map(|found| found.alarms().iter().map(|alarm| alarm.member_id()).collect()).unwrap_or_default()
}

/// Bytes of the file of a member's database.
async fn size(node: &Node) -> u64 {
    let status = node.raw_client().await.maintenance_client().status().await.unwrap();
    status.0.db_size.try_into().unwrap()
}

/// Writes the same key again and again, until the database is full.
async fn fill(node: &Node) -> KvError {
    let root = node.consensus().kv_root();
    for _ in 0..2 * (QUOTA >> 20) {
        if let Err(error) = root.put("test/put", "large", vec![7; 1 << 20]).await {
            return error;
        }
    }
    panic!("the database is not full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_at_their_quota_make_room_one_after_the_other_and_take_writes_again() {
    let mut cluster = Cluster::found_on(small()).await;
    cluster.grow_by(small()).await;
    cluster.grow_by(small()).await;
    let members: Vec<u64> = cluster.all_ready().await.iter().map(|status| status.member_id.unwrap()).collect();
    cluster.nodes[0].consensus().kv_root().put("test/put", "small", "stays").await.unwrap();
    let error = fill(&cluster.nodes[1]).await;
    assert!(matches!(error, KvError::NoSpace { .. }), "{error:?}");
    for node in &cluster.nodes {
        let full = size(node).await;
        assert!(full > QUOTA - (4 << 20), "{full} bytes are not many");
    }

    let is_over = Arc::new(AtomicBool::new(false));
    let watch = async {
        let mut turns = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let now: Vec<u64> = alarms(&cluster.nodes[0]).await.into_iter().map(|number| !number).collect();
            let now: Vec<u64> = now.into_iter().filter(|id| members.contains(id)).collect();
            if turns.last() != Some(&now) {
                turns.push(now);
            }
            sleep(LOOK_PAUSE).await;
        }
        turns
    };
    let made = async {
        for node in &cluster.nodes {
            let mut status = node.consensus().status();
            let has_room = status.wait_for(|status| status.is_ready() && !status.no_space);
            assert!(timeout(ROOM_PATIENCE, has_room).await.is_ok(), "there is no room\n{}", node.describe());
        }
        is_over.store(true, Ordering::Relaxed);
    };
    // The members know of the alarm only a moment after it.
    cluster.nodes[0].wait_condition("consensus-disk-full").await;
    let (turns, ()) = tokio::join!(watch, made);
    println!("{turns:?}");
    assert!(turns.iter().all(|turn| turn.len() < 2), "two had their turn at a time");
    let had: BTreeSet<u64> = turns.into_iter().flatten().collect();
    assert_eq!(had, members.iter().copied().collect(), "every member had a turn");
    for node in &cluster.nodes {
        let left = size(node).await;
        assert!(left < QUOTA / 4, "{left} bytes are left");
    }
    assert_eq!(alarms(&cluster.nodes[0]).await, [0_u64; 0]);
    assert_eq!(cluster.nodes[2].consensus().kv_root().get("small").await.unwrap().unwrap().value, b"stays");
    cluster.check("after").await;
    cluster.stop().await;
}
