//! A consensus member that cannot read its data, with the real etcd.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::founder::scene;
use crate::node::PATIENCE;

/// A call without an answer, and a pause between two calls, end within this time: 5 s each.
const ASKED_AGAIN_WITHIN: Duration = Duration::from_secs(7);

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_cannot_read_its_data_is_replaced() {
    let (_, founder, mut node) = scene().await;
    let script = founder.leader.script.clone();
    founder.admit(&node).await;
    node.start();
    let log = node.disk_path("wal/0000000000000000-0000000000000000.wal");
    let starts = async {
        while !log.is_file() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, starts).await.unwrap();
    node.member().await;
    node.stop().await;
    std::fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(0).unwrap();

    // It asks until the others have answered, and changes nothing by itself.
    script.refuse(Some(tonic::Status::failed_precondition("it would cost the quorum")));
    node.start();
    let member = node.member().await;
    node.wait("damaged", member.status(), |status| status.damage.is_some()).await;
    let said = member.status().borrow().damage.clone().unwrap();
    assert_eq!(script.replacements(), [""; 0]);
    // A leader that carries it out, and whose answer is lost.
    script.answer_replacements(false);
    script.refuse(None);
    script.wait_replacements(|reasons| !reasons.is_empty()).await;
    assert!(script.replacements().iter().all(|reason| *reason == said), "{:?}", script.replacements());
    assert!(log.is_file() && node.set_aside().is_empty());

    // The others have removed the member, and take another one in.
    founder.remove(&node).await;
    founder.take_role(&node);
    node.no_member().await;
    assert_eq!(node.set_aside().len(), 1);
    founder.admit(&node).await;
    founder.promote(&node).await;
    node.works().await;

    // That one works, and nobody asks for its end: not again, as for an answer that did not come.
    let asked = script.replacements().len();
    let asked_again = timeout(ASKED_AGAIN_WITHIN, script.wait_replacements(|reasons| reasons.len() > asked)).await;
    assert!(asked_again.is_err(), "the new member is to be replaced as well: {:?}", script.replacements());
    node.stop().await;
    founder.finish().await;
}
