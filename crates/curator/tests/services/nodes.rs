//! GetNodes.

use polis_proto::api::GetNodesRequest;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::common::NodeState;
use tonic::Code;

use crate::world::{Machine, World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_and_filtered() {
    let world = World::start().await;
    let (waiting, node) = (Machine::new(), world.healthy().await);
    world.register(&waiting).await.unwrap();
    let founder = world.etcd.node_id().to_string();
    let (waiting, node) = (waiting.id().to_string(), node.id().to_string());
    for (filter, expected) in [
        ("", vec![&founder, &waiting, &node]),
        ("node.state == NODE_STATE_NEW", vec![&waiting]),
        (
            "node.state == NODE_STATE_UP && node.health == HEALTH_HEALTHY && !has(node.roles.consensus_member)",
            vec![&node],
        ),
        ("has(node.roles.consensus_member)", vec![&founder]),
        ("!has(node.status)", vec![&waiting]),
        ("node.status.external_address == \"127.9.9.9\"", vec![&node]),
        ("false", vec![]),
    ] {
        let mut expected: Vec<_> = expected.into_iter().cloned().collect();
        expected.sort();
        let found: Vec<_> = world.nodes(filter).await.unwrap().into_iter().map(|node| node.id).collect();
        assert_eq!(found, expected, "{filter}");
    }
    for filter in
        ["node.", "node.id", "1 == 1 &&", "nodes.id == \"a\"", "node.id < 3", "node.labels.pairs[3].key == \"a\""]
    {
        assert_eq!(code(world.nodes(filter).await), Code::InvalidArgument, "{filter}");
    }
    let nodes = world.nodes("").await.unwrap();
    let found = nodes.iter().find(|found| found.id == node).unwrap();
    assert_eq!(found.state(), NodeState::Up);
    assert!(found.pubkey.len() == 32 && found.labels.is_some());
    // Nodes may look, too, and nobody else.
    let look = async |channel| ManagementClient::new(channel).get_nodes(GetNodesRequest::default()).await.map(|_| ());
    assert_eq!(code(look(world.founder()).await), Code::Ok);
    assert_eq!(code(look(world.anonymous()).await), Code::Unauthenticated);
    world.finish().await;
}
