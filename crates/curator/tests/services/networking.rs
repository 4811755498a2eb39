//! UpdateNodeClusterNetworking.

use polis_proto::common::NodeClusterNetworking;
use polis_proto::common::node_cluster_networking::Prefix;
use polis_proto::curator_api::UpdateNodeClusterNetworkingRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use tonic::{Code, Status};

use crate::world::{Machine, World, code};

const KEY: &str = "GaYHwjI+8XLxYg8fGYVWdV0mIRHBUmF8RV8XsQKEwU8=";
const OTHER: &str = "GaYHwjI+8XLxYg8fGYVWdV0mIRHBUmF8RV8XsQKEwUA=";

fn request(key: &str, prefixes: &[&str]) -> UpdateNodeClusterNetworkingRequest {
    let prefixes = prefixes.iter().map(|cidr| Prefix { cidr: (*cidr).into() }).collect();
    let clusternet = NodeClusterNetworking { wireguard_pubkey: key.into(), prefixes };
    UpdateNodeClusterNetworkingRequest { clusternet: Some(clusternet) }
}

async fn tell(world: &World, node: &Machine, key: &str, prefixes: &[&str]) -> Result<(), Status> {
    world.curator_of(node).update_node_cluster_networking(request(key, prefixes)).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_how_its_pods_are_reached() {
    let world = World::start().await;
    let (node, neighbour) = (world.enrol().await, world.enrol().await);
    assert_eq!(code(tell(&world, &node, KEY, &[]).await), Code::FailedPrecondition, "no status yet");
    world.tell_status(&node, "203.0.113.42").await.unwrap();
    world.tell_status(&neighbour, "203.0.113.43").await.unwrap();
    for (key, prefixes, expected) in [
        (KEY, &["10.192.0.24/32", "10.200.10.0/24"][..], Code::Ok),
        (KEY, &["203.0.113.42/32"], Code::Ok),
        (KEY, &[], Code::Ok),
        ("beep boop I'm a key", &[], Code::InvalidArgument),
        ("", &[], Code::InvalidArgument),
        (KEY, &["10.200.10.0"], Code::InvalidArgument),
        (KEY, &["10.200.10.1/24"], Code::InvalidArgument),
        (KEY, &["::/0"], Code::InvalidArgument),
        (KEY, &["203.0.113.43/32"], Code::InvalidArgument),
    ] {
        assert_eq!(code(tell(&world, &node, key, prefixes).await), expected, "{key}, {prefixes:?}");
    }
    assert_eq!(code(tell(&world, &neighbour, KEY, &[]).await), Code::InvalidArgument, "another node's key");
    let mut owner = CuratorClient::new(world.owner().await);
    let refused = owner.update_node_cluster_networking(request(KEY, &[])).await;
    assert_eq!(code(refused), Code::PermissionDenied, "only nodes");
    let nothing = UpdateNodeClusterNetworkingRequest { clusternet: None };
    let refused = world.curator_of(&node).update_node_cluster_networking(nothing).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    // A key that is given up is free, also that of a deleted node.
    tell(&world, &node, OTHER, &[]).await.unwrap();
    tell(&world, &neighbour, KEY, &[]).await.unwrap();
    crate::deletion::delete(&world, &node, false, true).await.unwrap();
    tell(&world, &neighbour, OTHER, &[]).await.unwrap();
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_with_the_same_key_at_once_one_is_refused() {
    let world = World::start().await;
    let (one, other) = (world.healthy().await, world.healthy().await);
    let (first, second) = tokio::join!(tell(&world, &one, KEY, &[]), tell(&world, &other, KEY, &[]));
    let mut codes = [code(first), code(second)];
    codes.sort_by_key(|code| *code as i32);
    assert_eq!(codes, [Code::Ok, Code::InvalidArgument]);
    world.finish().await;
}
