//! A member that was removed says so, its data are set aside, and the node can join anew.

use std::sync::Arc;
use std::time::Duration;

use polis_consensus::{EtcdBinary, KvError, Phase, Timing, set_aside};
use polis_storage::Disk;

use crate::cluster::Cluster;
use crate::faults::fake_etcd;
use crate::node::{Node, PATIENCE, etcd, introduce};

/// Socket on which nobody asks an etcd anything.
const UNKNOWN: &str = "unknown.sock:0";

/// The node's data are put away, and it joins again.
async fn join_again(cluster: &mut Cluster, node: Node) {
    let disk = Arc::clone(&node.disk) as Arc<dyn Disk>;
    let aside = set_aside(&disk).unwrap().expect("there are data");
    assert!(aside.join("member/wal").is_dir());
    let node = cluster.join(node).await;
    node.ready().await;
    cluster.nodes.push(node);
    cluster.all_ready().await;
    cluster.check("joined again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_member_that_is_removed_ends_and_may_join_again() {
    let mut cluster = Cluster::of_three().await;
    cluster.all_ready().await;
    let mut gone = cluster.nodes.pop().unwrap();
    let before = gone.ready().await.member_id;
    // etcd 3.4 panics when it is asked between the removal and its end, which is no fault of the member.
    let mut raw = gone.raw_client().await;
    let asking = tokio::spawn(async move { while raw.status().await.is_ok() {} });
    cluster.nodes[0].consensus().membership().remove("test/remove", &gone.public_key()).await.unwrap();
    let status = gone.wait_for("removed", |status| status.phase == Phase::Removed).await;
    assert_eq!((status.process_id, status.is_leader()), (None, false));
    assert!(matches!(gone.consensus().kv_root().get("key").await, Err(KvError::Unavailable { .. })));
    assert_eq!(gone.harness().conditions().snapshot(), [], "it is no fault");
    asking.await.unwrap();
    let dump = gone.harness().observer().dump();
    let member = dump.iter().find(|report| report.distinguished_name.as_str() == "root.consensus.member").unwrap();
    assert_eq!((member.restarts, &member.last_error), (0, &None), "nothing has died");
    cluster.check("without it").await;
    gone.stop_removed().await;
    join_again(&mut cluster, gone).await;
    assert_ne!(cluster.nodes[2].ready().await.member_id, before, "it is a new member");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_while_it_was_down_finds_out_at_its_start() {
    let mut cluster = Cluster::of_three().await;
    cluster.all_ready().await;
    let mut gone = cluster.nodes.pop().unwrap();
    gone.stop().await;
    cluster.nodes[0].consensus().membership().remove("test/remove", &gone.public_key()).await.unwrap();
    gone.restart();
    let all: Vec<&Node> = cluster.nodes.iter().chain([&gone]).collect();
    introduce(&all);
    gone.wait_for("removed", |status| status.phase == Phase::Removed).await;
    gone.stop_removed().await;
    join_again(&mut cluster, gone).await;
    cluster.stop().await;
}

/// etcd sends the commit of a change before it writes it down for itself. A leader that is killed between the two comes back as one of
/// two, while the other one has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_right_after_a_removal_leads_again() {
    let mut cluster = Cluster::found().await;
    cluster.grow().await;
    cluster.all_ready().await;
    let (mut stays, mut gone) = (cluster.nodes.remove(0), cluster.nodes.pop().unwrap());
    loop {
        gone.stop().await;
        // An etcd 3.4 that is asked while it is removed panics, and so does not know of it either.
        let version = etcd().verify().await.unwrap().to_string();
        let deaf = fake_etcd(
            gone.path(),
            &version,
            &format!("rm -f {UNKNOWN}\nexec $etcd \"$@\" --listen-client-urls unix://{UNKNOWN}"),
        );
        gone.etcd = EtcdBinary::find(Some(&deaf), None).unwrap();
        gone.restart();
        introduce(&[&stays, &gone]);
        if stays.ready().await.is_leader() {
            break;
        }
    }
    stays.consensus().membership().remove("test/remove", &gone.public_key()).await.unwrap();
    stays.kill_etcd();
    stays.stop().await;
    gone.wait_for("removed", |status| status.phase == Phase::Removed).await;
    stays.restart();
    introduce(&[&stays, &gone]);
    stays.wait_for("the only one", |status| status.is_ready() && status.members.len() == 1).await;
    gone.stop_removed().await;
    cluster.nodes.push(stays);
    cluster.check("alone").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_member_that_is_left_gets_the_timing_of_one_alone() {
    let mut cluster = Cluster::found().await;
    cluster.grow().await;
    cluster.all_ready().await;
    let mut gone = cluster.nodes.pop().unwrap();
    cluster.nodes[0].consensus().membership().remove("test/remove", &gone.public_key()).await.unwrap();
    gone.wait_for("removed", |status| status.phase == Phase::Removed).await;
    gone.stop_removed().await;
    let mut status = cluster.nodes[0].consensus().status();
    let before = cluster.nodes[0].process_id();
    let alone = status
        .wait_for(|status| status.is_ready() && status.timing == Timing::Alone && status.process_id != Some(before));
    // Not at once: somebody may be about to join.
    tokio::time::timeout(Duration::from_secs(30) + PATIENCE, alone).await.expect("it is alone for long").unwrap();
    cluster.check("alone").await;
    cluster.stop().await;
}
