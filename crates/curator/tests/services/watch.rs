//! Watch and WatchOrders.

use polis_identity::NodeId;
use polis_proto::common::NodeState;
use polis_proto::curator_api::watch_event::Progress;
use polis_proto::curator_api::watch_request::{Kind, NodeInCluster, NodesInCluster};
use polis_proto::curator_api::{WatchEvent, WatchRequest};
use polis_proto::curator_state::DecommissionPhase;
use polis_proto::enrolment::WatchOrdersRequest;
use tonic::{Code, Streaming};

use crate::deletion::delete;
use crate::world::{Machine, World, code};

async fn watch(world: &World, kind: Option<Kind>) -> Result<Streaming<WatchEvent>, tonic::Status> {
    let mut curator = polis_proto::curator_api::curator_client::CuratorClient::new(world.founder());
    Ok(curator.watch(WatchRequest { kind }).await?.into_inner())
}

async fn watch_node(world: &World, id: &NodeId) -> Streaming<WatchEvent> {
    watch(world, Some(Kind::NodeInCluster(NodeInCluster { node_id: id.to_string() }))).await.unwrap()
}

async fn next(world: &World, events: &mut Streaming<WatchEvent>) -> WatchEvent {
    world.within("the next event", events.message()).await.unwrap().expect("the watch goes on")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_is_followed_from_before_it_exists_until_it_is_gone() {
    let world = World::start().await;
    let machine = Machine::new();
    let mut events = watch_node(&world, &machine.id()).await;
    let waits = tokio::time::timeout(std::time::Duration::from_millis(200), events.message()).await;
    assert!(waits.is_err(), "a node that does not exist is waited for");
    world.register(&machine).await.unwrap();
    let event = next(&world, &mut events).await;
    assert_eq!((event.nodes[0].state(), event.nodes[0].id.clone()), (NodeState::New, machine.id().to_string()));
    world.approve(&machine).await.unwrap();
    assert_eq!(next(&world, &mut events).await.nodes[0].state(), NodeState::Standby);
    delete(&world, &machine, false, false).await.unwrap();
    let event = next(&world, &mut events).await;
    assert_eq!(event.nodes, []);
    assert_eq!(event.node_tombstones[0].node_id, machine.id().to_string());
    // Who begins to watch now is told at once.
    let event = {
        let mut events = watch_node(&world, &machine.id()).await;
        next(&world, &mut events).await
    };
    assert_eq!(event.node_tombstones.len(), 1);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_are_followed() {
    let world = World::start().await;
    let known = [Machine::new(), Machine::new()];
    for machine in &known {
        world.register(machine).await.unwrap();
    }
    let mut events = watch(&world, Some(Kind::NodesInCluster(NodesInCluster {}))).await.unwrap();
    let mut expected: Vec<_> = known.iter().map(|machine| machine.id().to_string()).collect();
    expected.push(world.etcd.node_id().to_string());
    expected.sort();
    // All nodes of a member are followed by one watch for everybody: what was made a moment ago may come after the backlog.
    let (mut seen, mut is_backlog_over) = (Vec::new(), false);
    while !is_backlog_over || seen.len() < expected.len() {
        let event = next(&world, &mut events).await;
        seen.extend(event.nodes.iter().map(|node| node.id.clone()));
        is_backlog_over |= event.progress() == Progress::LastBacklogged;
    }
    seen.sort();
    assert_eq!(seen, expected);
    world.approve(&known[0]).await.unwrap();
    let event = next(&world, &mut events).await;
    assert_eq!(event.progress(), Progress::Unspecified);
    assert_eq!((event.nodes.len(), event.nodes[0].state()), (1, NodeState::Standby));
    delete(&world, &known[1], false, false).await.unwrap();
    assert_eq!(next(&world, &mut events).await.node_tombstones[0].node_id, known[1].id().to_string());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_watched_is_refused() {
    let world = World::start().await;
    for id in ["", "metropolis-", "metropolis-0123456789abcdef0123456789abcdeg", "node"] {
        let watched = watch(&world, Some(Kind::NodeInCluster(NodeInCluster { node_id: id.into() }))).await;
        assert_eq!(code(watched), Code::InvalidArgument, "{id}");
    }
    assert_eq!(code(watch(&world, None).await), Code::Unimplemented);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_come_at_once_and_with_each_change() {
    let world = World::start().await;
    let node = world.enrol().await;
    let mut orders = world.enrolment_of(&node).watch_orders(WatchOrdersRequest {}).await.unwrap().into_inner();
    let first = world.within("the first orders", orders.message()).await.unwrap().unwrap();
    assert!(first.signed_list.is_some());
    assert_eq!(first.members.len(), 1);
    assert_eq!(first.members[0].node_id, world.etcd.node_id().to_string());
    assert_eq!(first.decommission(), DecommissionPhase::None);
    assert!(!first.revocation_list.is_empty());
    let other = world.enrol().await;
    delete(&world, &other, false, true).await.unwrap();
    let second = world.within("the revocation", orders.message()).await.unwrap().unwrap();
    assert_ne!(second.revocation_list, first.revocation_list);
    crate::decommission::decommission(&world, &node).await.unwrap();
    let third = world.within("the wish", orders.message()).await.unwrap().unwrap();
    assert_eq!(third.decommission(), DecommissionPhase::Requested);
    world.finish().await;
}
