//! UpdateNodeStatus and Heartbeat.

use std::time::Duration;

use polis_curator::HEARTBEAT_TIMEOUT;
use polis_proto::api::node::Health;
use polis_proto::common::NodeStatus;
use polis_proto::common::node_status::RunningCurator;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::{HeartbeatRequest, UpdateNodeStatusRequest};
use tokio::time::Instant;
use tonic::Code;

use crate::world::{World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_its_own_status_and_no_other() {
    let world = World::start().await;
    let node = world.enrol().await;
    let status = NodeStatus {
        external_address: "192.0.2.10".into(),
        running_curator: Some(RunningCurator { port: 7835 }),
        timestamp: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
        version: None,
        boot_id: vec![4; 16],
    };
    let request = |id: String, status: Option<NodeStatus>| UpdateNodeStatusRequest { node_id: id, status };
    let own = node.id().to_string();
    let mut curator = world.curator_of(&node);
    let founder = world.etcd.node_id().to_string();
    let refused = curator.update_node_status(request(founder, Some(status.clone()))).await;
    assert_eq!(code(refused), Code::PermissionDenied);
    assert_eq!(code(curator.update_node_status(request(own.clone(), None)).await), Code::InvalidArgument);
    assert_eq!(
        code(curator.update_node_status(request("nobody".into(), Some(status.clone()))).await),
        Code::PermissionDenied
    );
    for address in ["", "beep", "192.0.2.10:7835"] {
        let status = NodeStatus { external_address: address.into(), ..status.clone() };
        let refused = curator.update_node_status(request(own.clone(), Some(status))).await;
        assert_eq!(code(refused), Code::InvalidArgument, "{address}");
    }
    let mut owner = CuratorClient::new(world.owner().await);
    let refused = owner.update_node_status(request(own.clone(), Some(status.clone()))).await;
    assert_eq!(code(refused), Code::PermissionDenied, "only nodes");
    curator.update_node_status(request(own, Some(status.clone()))).await.unwrap();
    let told = world.node(&node.id()).await.status.unwrap();
    assert!(told.timestamp.unwrap().seconds > 1, "the leader's clock counts");
    assert_eq!(NodeStatus { timestamp: None, ..told }, NodeStatus { timestamp: None, ..status });
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_the_heartbeats() {
    let world = World::start().await;
    let node = world.enrol().await;
    let seen = async || {
        let seen = world.node(&node.id()).await;
        (seen.health(), seen.time_since_heartbeat)
    };
    assert_eq!(seen().await, (Health::Unknown, None), "the leader is too new to tell");
    world.beat(&node).await.unwrap();
    let (health, age) = seen().await;
    assert_eq!(health, Health::Healthy);
    assert!(age.is_some_and(|age| age.seconds < 5));
    let long_ago = Instant::now().checked_sub(HEARTBEAT_TIMEOUT + Duration::from_secs(1)).unwrap();
    world.curator.heartbeats().stamp(node.id(), long_ago);
    let (health, age) = seen().await;
    assert_eq!(health, Health::HeartbeatTimeout);
    assert!(age.is_some_and(|age| age.seconds >= 11));
    world.beat(&node).await.unwrap();
    assert_eq!(seen().await.0, Health::Healthy);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_beat_gets_an_answer_as_it_comes() {
    let world = World::start().await;
    let node = world.enrol().await;
    let (beats, incoming) = tokio::sync::mpsc::channel(1);
    let stream = futures::stream::unfold(incoming, async |mut incoming| Some((incoming.recv().await?, incoming)));
    let mut answers = world.curator_of(&node).heartbeat(stream).await.unwrap().into_inner();
    for _ in 0..5 {
        beats.send(HeartbeatRequest {}).await.unwrap();
        assert!(world.within("the answer comes", answers.message()).await.unwrap().is_some());
    }
    drop(beats);
    assert!(world.within("the call ends with the node's end", answers.message()).await.unwrap().is_none());
    let mut owner = CuratorClient::new(world.owner().await);
    let refused = owner.heartbeat(futures::stream::iter([HeartbeatRequest {}])).await;
    assert_eq!(code(refused), Code::PermissionDenied, "only nodes");
    world.finish().await;
}
