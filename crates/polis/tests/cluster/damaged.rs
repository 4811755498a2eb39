//! A member whose data were damaged is replaced by itself while the others have a quorum; without one nothing is touched.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use polis_testkit::{Cluster, NodeData};

use crate::{all_healthy, binary};

/// Name of the condition of a member that cannot read its data.
const DAMAGED: &str = "consensus-data-damaged";

/// The log of etcd, below the root of a node.
const LOG: &str = "data/etcd/data/member/wal/0000000000000000-0000000000000000.wal";

/// Bytes that are changed: more than what lies unused between two entries of the log, at most 7, in which nothing would be lost.
const CHANGED: usize = 16;

/// Changes some bytes in the middle of the log of the running node's etcd, as a disk does that has forgotten a part of what it was
/// given, and returns where and what they are now. etcd reads them at its next start.
fn damage(cluster: &Cluster, node: usize) -> (usize, [u8; CHANGED]) {
    let log = cluster.hosts[node].root().join(LOG);
    let bytes = fs::read(&log).unwrap();
    let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    let damaged = std::array::from_fn(|index| bytes[middle + index] ^ 0x55);
    OpenOptions::new().write(true).open(&log).unwrap().write_all_at(&damaged, middle as u64).unwrap();
    (middle, damaged)
}

#[test]
fn one_of_three_is_replaced_by_itself() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow_to(3);
    all_healthy(&cluster, 3);
    let members = |cluster: &Cluster| {
        cluster.wait_members("three members with a vote", |members| {
            members.len() == 3 && members.iter().all(|member| member["learner"] == false)
        })
    };
    let before = members(&cluster);
    let (place, damaged) = damage(&cluster, 2);
    cluster.kill(2);
    cluster.start(2);
    let etcd = cluster.hosts[2].root().join("data/etcd");
    let kept = etcd.join("removed-1/member/wal/0000000000000000-0000000000000000.wal");
    assert_eq!(cluster.node(2).wait_exit_or("the old data are set aside", || kept.is_file()), None);
    assert_eq!(fs::read(&kept).unwrap()[place..][..CHANGED], damaged, "they are kept as they were");
    let status = cluster.node(2).wait("a member without a fault", |status| {
        status.consensus.as_ref().is_some_and(|consensus| consensus.members.len() == 3)
            && status.conditions.iter().all(|condition| condition.name != DAMAGED)
    });
    println!("{status:?}");
    all_healthy(&cluster, 3);
    let after = members(&cluster);
    let known = |id: &serde_json::Value| before.iter().any(|member| member["member_id"] == *id);
    assert_eq!(after.iter().filter(|member| known(&member["member_id"])).count(), 2, "{before:?}\n{after:?}");
}

#[test]
fn the_only_one_stays_as_it_is_and_names_the_choices() {
    let mut cluster = Cluster::on_loopback(binary(), 1);
    cluster.found();
    all_healthy(&cluster, 1);
    damage(&cluster, 0);
    cluster.kill(0);
    let root = cluster.hosts[0].root();
    let damaged = fs::read(NodeData::of(&root).path(LOG)).unwrap();
    cluster.start(0);
    let status = cluster.node(0).wait_condition(DAMAGED);
    let condition = status.conditions.iter().find(|condition| condition.name == DAMAGED).unwrap();
    assert!(condition.hint.contains("polis cluster recover"), "{condition:?}");
    assert!(fs::read(root.join(LOG)).unwrap() == damaged, "nothing was changed");
}
