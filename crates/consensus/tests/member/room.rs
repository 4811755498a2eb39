//! Room: a file system that is really full, and databases that give back what they do not use.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use etcd_client::CompactionOptions;
use polis_consensus::{CHANGE_UNDER_WAY_KEY, KvError, Round, WORTH_BYTES};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::cluster::Cluster;
use crate::node::Node;

/// A small file system in memory, in the place of etcd's data.
struct SmallDisk {
    place: PathBuf,
    ballast: PathBuf,
}

impl SmallDisk {
    /// Large enough for two segments of etcd's log, and for what is needed for a start. `None`: this user cannot mount.
    fn mount(place: &Path) -> Option<Self> {
        match mount("polis-test", place, "tmpfs", MountFlags::empty(), c"size=250m") {
            Ok(()) => Some(Self { place: place.to_owned(), ballast: place.join("ballast") }),
            Err(rustix::io::Errno::PERM) => {
                println!("skipped: it takes root to mount a file system");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Leaves no byte free.
    fn fill(&self) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.ballast).unwrap();
        for size in [1 << 20, 4096, 1] {
            while file.write(&vec![1; size]).is_ok_and(|written| written > 0) {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(&self.ballast).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_is_waited_for_and_nothing_acknowledged_is_lost() {
    let mut node = Node::new();
    let Some(disk) = SmallDisk::mount(&node.layout.data.etcd.data.full_path()) else { return };
    node.found();
    node.ready().await;
    let root = node.consensus().kv_root();
    root.put("test/put", "first", "one").await.unwrap();
    disk.fill();
    // What is not written yet goes into the room that etcd has claimed for its log; then there is none.
    let mut acknowledged = 0_u32;
    let error = loop {
        match root.put("test/put", format!("large/{acknowledged:04}"), vec![7; 1 << 20]).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 500, "the disk is not full");
    };
    println!("{acknowledged} MiB were taken on a full disk, then: {error}");
    node.wait_for_message("consensus-disk-full", "are free there").await;
    let message = node.wait_condition("consensus-disk-full").await;
    assert!(message.contains("no space left on the disk") && message.contains("MiB"), "{message}");
    disk.make_room();
    node.ready().await;
    node.wait_no_condition("consensus-disk-full").await;
    assert_eq!(root.get("first").await.unwrap().unwrap().value, b"one");
    let found = root.list("large/").await.unwrap().entries;
    assert!(found.len() >= acknowledged as usize, "{} of {acknowledged}", found.len());
    root.put("test/put", "first", "two").await.unwrap();
    node.stop().await;
}

/// Fills the database of every member with what is then deleted and compacted away.
async fn leave_gaps(cluster: &Cluster) {
    let root = cluster.nodes[0].consensus().kv_root();
    let large = vec![7; 1 << 20];
    let count = WORTH_BYTES / large.len() as u64 + 16;
    for number in 0..count {
        root.put("test/put", format!("large/{number:04}"), large.clone()).await.unwrap();
    }
    root.delete_all("test/delete", "large/").await.unwrap();
    let revision = root.put("test/put", "small", "stays").await.unwrap();
    let mut client = cluster.nodes[0].raw_client().await;
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    for node in &cluster.nodes {
        // What was freed counts as unused from the next change on.
        let compacted = async || {
            root.put("test/put", "small", "stays").await.unwrap();
            sizes(node).await.1 < WORTH_BYTES / 2
        };
        node.wait_until("compacted", compacted).await;
    }
}

/// Bytes of a member's database: of the file, and in use.
async fn sizes(node: &Node) -> (u64, u64) {
    let status = node.raw_client().await.maintenance_client().status().await.unwrap();
    (status.0.db_size.try_into().unwrap(), status.0.db_size_in_use.try_into().unwrap())
}

fn leader(cluster: &Cluster) -> &Node {
    cluster.nodes.iter().find(|node| node.consensus().status().borrow().is_leader()).expect("there is a leader")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_give_back_what_they_do_not_use_one_after_the_other() {
    const TURN: &str = "namespaced:polis//consensus/defragmentation-turn";
    let mut cluster = Cluster::of_three().await;
    cluster.all_ready().await;
    leave_gaps(&cluster).await;
    let root = cluster.nodes[0].consensus().kv_root();

    // Not while the members change, and not while one is missing.
    let revision = root.put("test/put", CHANGE_UNDER_WAY_KEY, "an intent").await.unwrap();
    let round = leader(&cluster).consensus().defragment_members().await.unwrap();
    assert!(matches!(&round, Round::Stopped(reason) if reason.contains("under way")), "{round:?}");
    root.delete("test/delete", CHANGE_UNDER_WAY_KEY).await.unwrap();
    let absent = cluster.nodes.iter().rposition(|node| !node.consensus().status().borrow().is_leader()).unwrap();
    cluster.nodes[absent].stop().await;
    let round = leader(&cluster).consensus().defragment_members().await.unwrap();
    assert!(matches!(&round, Round::Stopped(reason) if reason.contains("does not answer")), "{round:?}");
    for node in cluster.nodes.iter().enumerate().filter(|(index, _)| *index != absent).map(|(_, node)| node) {
        assert!(sizes(node).await.0 >= WORTH_BYTES);
    }
    cluster.nodes[absent].timing = polis_consensus::Timing::Network(polis_consensus::Pace::Near);
    cluster.nodes[absent].restart();
    cluster.introduce();
    cluster.all_ready().await;

    let before = leader(&cluster).consensus().status().borrow().member_id;
    let round = leader(&cluster).consensus().defragment_members().await.unwrap();
    assert_eq!(round, Round::Done);
    for node in &cluster.nodes {
        let (size, in_use) = sizes(node).await;
        assert!(size < WORTH_BYTES / 2, "{size} bytes, {in_use} in use");
    }
    // The leader was the last, and had handed over.
    let mut turns = root.watch_key(TURN, revision);
    let mut seen = Vec::new();
    while seen.len() < 6 {
        seen.extend(turns.next().await.unwrap());
    }
    let mut members = Vec::new();
    for pair in seen.chunks(2) {
        let [polis_consensus::Change::Put(turn), polis_consensus::Change::Delete { .. }] = pair else {
            panic!("two had their turn at a time: {seen:?}")
        };
        members.push(u64::from_str_radix(str::from_utf8(&turn.value).unwrap(), 16).unwrap());
    }
    assert_eq!(members.last().copied(), before);
    assert_ne!(leader(&cluster).consensus().status().borrow().member_id, before);
    assert_eq!(root.get("small").await.unwrap().unwrap().value, b"stays");
    cluster.check("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_member_is_never_stopped_for_it() {
    let cluster = Cluster::found().await;
    leave_gaps(&cluster).await;
    let round = cluster.nodes[0].consensus().defragment_members().await.unwrap();
    assert!(matches!(&round, Round::Stopped(reason) if reason.contains("stand in")), "{round:?}");
    assert!(sizes(&cluster.nodes[0]).await.0 >= WORTH_BYTES);
    assert!(!matches!(cluster.nodes[0].consensus().kv_root().get("small").await, Err(KvError::Unavailable { .. })));
    cluster.stop().await;
}
