//! What a member tells of the keys that the cluster keeps, with the real etcd.

use std::time::{Duration, Instant};

use polis_proto::common::{NodeState, NodeTpmUsage};
use polis_roleserve::ClusterKeys;
use polis_secret::Secret32;
use polis_unlock::{ClusterUnlockKey, ClusterWord};
use polis_unlock_service::CurrentKeys as _;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::founder::scene;

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_members_are_told_only_while_a_quorum_says_so() {
    let (cluster, founder, mut node) = scene().await;
    // No member yet, as on a node that is locked.
    let owner = cluster.node();
    let nobody = ClusterKeys::new(watch::Sender::new(None).subscribe());
    assert_eq!(nobody.word(owner.id).await, ClusterWord::Unavailable);
    founder.admit(&node).await;
    node.start();
    founder.promote(&node).await;
    node.works().await;
    let keys = ClusterKeys::new(node.running().control_plane.member());
    let root = node.member().await.kv_root();
    let key = [7; 32];
    let records = [
        (NodeState::Up, &key[..], ClusterWord::Key(ClusterUnlockKey::new(Secret32::new(key)))),
        // Its data were not encrypted when it joined.
        (NodeState::Up, &[], ClusterWord::Unavailable),
        (NodeState::Standby, &key, ClusterWord::NotUp),
        (NodeState::New, &[], ClusterWord::NotUp),
        (NodeState::Decommissioned, &key, ClusterWord::NotUp),
    ];
    assert_eq!(keys.word(owner.id).await, ClusterWord::NotUp, "it was deleted");
    for (state, cluster_unlock_key, expected) in records {
        let record = polis_proto::curator_private::Node {
            id: owner.id.to_string(),
            public_key: owner.key.public().as_bytes().to_vec(),
            cluster_unlock_key: cluster_unlock_key.to_vec(),
            fsm_state: state.into(),
            join_key: owner.key.public().as_bytes().to_vec(),
            tpm_usage: NodeTpmUsage::NotPresent.into(),
            ..Default::default()
        };
        root.put("test", polis_curator::layout::node(&owner.id), record.encode_to_vec()).await.unwrap();
        assert_eq!(keys.word(owner.id).await, expected, "{state:?}");
    }
    root.put("test", polis_curator::layout::node(&owner.id), b"\xff").await.unwrap();
    assert_eq!(keys.word(owner.id).await, ClusterWord::Unavailable, "a damaged record");

    // Without the other there is no quorum: at once once that is known, and in any case nothing that was true before.
    founder.finish().await;
    let member = node.member().await;
    let cut = timeout(Duration::from_millis(300), keys.word(owner.id)).await.unwrap_or(ClusterWord::Unavailable);
    assert_eq!(cut, ClusterWord::Unavailable);
    node.wait("without a leader", member.status(), |status| !status.is_ready()).await;
    let began = Instant::now();
    assert_eq!(keys.word(owner.id).await, ClusterWord::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    node.stop().await;
    assert_eq!(keys.word(owner.id).await, ClusterWord::Unavailable, "its member has stopped");
}
