//! A consensus member that cannot read its data, with the real etcd.

use std::time::Duration;

use polis_proto::common::NodeRoles;
use tokio::time::{sleep, timeout};

use crate::cluster::TestCluster;
use crate::member::Founder;
use crate::node::{Node, PATIENCE};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_cannot_read_its_data_is_replaced() {
    let cluster = TestCluster::default();
    let founder = Founder::start(&cluster).await;
    let script = founder.leader.script.clone();
    let mut node = Node::of(&cluster, &founder);
    founder.add(&node).await;
    script.set_node(node.wire(founder.role(&node)));
    node.start();
    let has_log = || node.disk_path("wal/0000000000000000-0000000000000000.wal").is_file();
    let starts = async {
        while !has_log() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, starts).await.unwrap();
    node.member().await;
    node.stop().await;
    let log = node.disk_path("wal/0000000000000000-0000000000000000.wal");
    std::fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(0).unwrap();

    // It asks until the others have answered, and changes nothing by itself.
    script.refuse(Some(tonic::Status::failed_precondition("it would cost the quorum")));
    node.start();
    let member = node.member().await;
    node.wait("damaged", member.status(), |status| status.damage.is_some()).await;
    let said = member.status().borrow().damage.clone().unwrap();
    assert_eq!(script.replacements(), [""; 0]);
    script.refuse(None);
    script.wait_replacements(|reasons| !reasons.is_empty()).await;
    assert!(script.replacements().iter().all(|reason| *reason == said), "{:?}", script.replacements());
    assert!(log.is_file() && node.set_aside().is_empty());

    // The others have removed the member, and take another one in.
    founder.remove(&node).await;
    script.set_node(node.wire(NodeRoles::default()));
    node.no_member().await;
    assert_eq!(node.set_aside().len(), 1);
    founder.add(&node).await;
    script.set_node(node.wire(founder.role(&node)));
    founder.promote(&node).await;
    node.works().await;
    node.stop().await;
    founder.finish().await;
}
