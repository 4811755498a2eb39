//! What a node says that does not lead, and what happens when it ceases to.

use polis_identity::{NodeId, NodeKey};
use polis_proto::api::aaa_client::AaaClient;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{EscrowRequest, GetClusterInfoRequest, GetNodesRequest};
use polis_proto::cluster::GetStatusRequest;
use polis_proto::cluster::cluster_client::ClusterClient;
use polis_proto::curator_api::watch_request::{Kind, NodesInCluster};
use polis_proto::curator_api::{
    GetCaCertificateRequest, GetConsensusStatusRequest, GetCurrentLeaderRequest, HeartbeatRequest, WatchRequest,
};
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::{GetMembersRequest, GetTombstoneRequest, WatchOrdersRequest};
use polis_rpc::{CURATOR_PORT, detail};
use tonic::{Code, Status};

use crate::world::{Machine, World, code};

/// Has another node lead, and waits until that is known.
async fn depose(world: &World, other: &NodeId) {
    world.etcd.lead_as(other).await;
    let mut leadership = world.curator.leadership();
    let follows = leadership.wait_for(|known| known.leader().is_none());
    world.within("it follows", follows).await.unwrap();
    world
        .within("the other is known", async {
            while !matches!(&*leadership.borrow_and_update(), polis_curator::Leadership::Follower { .. }) {
                leadership.changed().await.unwrap();
            }
        })
        .await;
}

#[track_caller]
fn assert_hint(status: &Status, leader: &NodeId, host: &str) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let hint = detail::leader(status).unwrap_or_else(|| panic!("no leader is named: {status:?}"));
    assert_eq!((hint.node_id, &*hint.host, hint.port), (leader.to_string(), host, i32::from(CURATOR_PORT)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_names_the_leader_and_serves_what_needs_none() {
    let world = World::start().await;
    let (node, other) = (world.healthy().await, world.healthy().await);
    let owner = world.owner().await;
    let (beats, incoming) = tokio::sync::mpsc::channel(1);
    let stream = futures::stream::unfold(incoming, async |mut incoming| Some((incoming.recv().await?, incoming)));
    let mut curator = world.curator_of(&node);
    let mut heartbeat = curator.heartbeat(stream).await.unwrap().into_inner();
    beats.send(HeartbeatRequest {}).await.unwrap();
    heartbeat.message().await.unwrap().unwrap();
    let kind = Some(Kind::NodesInCluster(NodesInCluster {}));
    let mut watch = curator.watch(WatchRequest { kind: kind.clone() }).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let mut orders = world.enrolment_of(&node).watch_orders(WatchOrdersRequest {}).await.unwrap().into_inner();
    orders.message().await.unwrap().unwrap();
    let mut leaders = world.local().get_current_leader(GetCurrentLeaderRequest {}).await.unwrap().into_inner();
    let leader = leaders.message().await.unwrap().unwrap();
    let own = world.etcd.node_id().to_string();
    assert_eq!((&leader.leader_node_id, &leader.this_node_id), (&own, &own));
    assert_eq!((leader.leader_host, leader.leader_port), (world.address.to_string(), i32::from(CURATOR_PORT)));

    depose(&world, &other.id()).await;
    let (id, host) = (other.id(), "127.9.9.9");
    // Whoever was being served is told where to go on.
    let changed = world.within("the change is told", leaders.message()).await.unwrap().unwrap();
    assert_eq!((changed.leader_node_id, &*changed.leader_host, changed.this_node_id), (id.to_string(), host, own));
    for ended in [
        world.within("the heartbeat ends", heartbeat.message()).await.map(|_| ()),
        world
            .within("the watch ends", async {
                while watch.message().await?.is_some() {}
                Ok::<_, Status>(())
            })
            .await,
        world
            .within("the orders end", async {
                while orders.message().await?.is_some() {}
                Ok::<_, Status>(())
            })
            .await,
    ] {
        // The streams may end before it is known who leads now.
        assert_eq!(code(ended), Code::Unavailable);
    }
    // Whoever calls anew is told at once, by every service.
    let machine = Machine::new();
    let refused = [
        code_and(curator.watch(WatchRequest { kind }).await),
        code_and(curator.heartbeat(futures::stream::iter([HeartbeatRequest {}])).await),
        code_and(curator.get_consensus_status(GetConsensusStatusRequest {}).await),
        code_and(world.tell_status(&node, host).await),
        code_and(world.register_with(&machine, b"ticket").await),
        code_and(world.commit(&machine, 1, &[]).await),
        code_and(AaaClient::new(world.anonymous()).escrow(futures::stream::iter([EscrowRequest::default()])).await),
        code_and(ManagementClient::new(owner.clone()).get_nodes(GetNodesRequest::default()).await),
        code_and(ManagementClient::new(owner.clone()).get_cluster_info(GetClusterInfoRequest {}).await),
        code_and(ClusterClient::new(owner).get_status(GetStatusRequest {}).await),
        code_and(world.enrolment_of(&node).get_members(GetMembersRequest {}).await),
        code_and(world.enrolment_of(&node).watch_orders(WatchOrdersRequest {}).await),
    ];
    for status in &refused {
        assert_hint(status, &id, host);
    }
    // What needs no leader is served.
    let authority = world.local().get_ca_certificate(GetCaCertificateRequest {}).await.unwrap().into_inner();
    assert_eq!(authority.identity_ca_certificate, world.authority.der());
    let request = GetTombstoneRequest { node_id: machine.id().to_string() };
    let tombstone = EnrolmentClient::new(world.anonymous()).get_tombstone(request).await.unwrap();
    assert_eq!(tombstone.into_inner().tombstone, None);
    world.finish().await;
}

fn code_and<T>(result: Result<T, Status>) -> Status {
    result.err().unwrap_or_else(|| Status::ok("it was served"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_cannot_be_found_is_not_told() {
    let world = World::start().await;
    depose(&world, &NodeId::of(&NodeKey::generate().public())).await;
    let answer = match world.local().get_current_leader(GetCurrentLeaderRequest {}).await {
        Ok(answers) => answers.into_inner().message().await.map(|_| ()),
        Err(status) => Err(status),
    };
    assert_eq!(code(answer), Code::Unavailable, "its address is not known");
    world.finish().await;
}
