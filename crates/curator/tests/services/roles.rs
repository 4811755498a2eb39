//! UpdateNodeRoles.

use polis_curator::layout;
use polis_proto::api::UpdateNodeRolesRequest;
use polis_proto::api::update_node_roles_request::Node as Target;
use polis_rpc::detail;
use tonic::{Code, Status};

use crate::world::{Machine, World, code, settled};

/// A request for one role, on.
pub(crate) fn only(role: &str) -> UpdateNodeRolesRequest {
    wish(&[(role, true)])
}

pub(crate) fn wish(roles: &[(&str, bool)]) -> UpdateNodeRolesRequest {
    let of = |name: &str| roles.iter().find(|(role, _)| *role == name).map(|(_, on)| *on);
    UpdateNodeRolesRequest {
        node: None,
        kubernetes_worker: of("kubernetes_worker"),
        kubernetes_controller: of("kubernetes_controller"),
        consensus_member: of("consensus_member"),
    }
}

pub(crate) async fn give(world: &World, machine: &Machine, request: UpdateNodeRolesRequest) -> Result<(), Status> {
    let request = UpdateNodeRolesRequest { node: Some(Target::Id(machine.id().to_string())), ..request };
    world.management().await.update_node_roles(request).await.map(|_| ())
}

fn founder(world: &World) -> Machine {
    let key = polis_identity::NodeKey::from_secret(world.etcd.node_key.secret().clone());
    Machine { key, ..Machine::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_of_kubernetes_are_given_and_taken() {
    let world = World::start().await;
    let (founder, node) = (founder(&world), world.enrol().await);
    let roles = async |machine: &Machine| {
        let roles = world.node(&machine.id()).await.roles.unwrap();
        (roles.consensus_member.is_some(), roles.kubernetes_controller.is_some(), roles.kubernetes_worker.is_some())
    };
    give(&world, &node, only("kubernetes_worker")).await.unwrap();
    assert_eq!(roles(&node).await, (false, false, true));
    assert_eq!(code(give(&world, &node, only("kubernetes_controller")).await), Code::FailedPrecondition);
    give(&world, &node, wish(&[("kubernetes_worker", false)])).await.unwrap();
    assert_eq!(roles(&node).await, (false, false, false));
    // The founder begins with both.
    assert_eq!(roles(&founder).await, (true, true, false));
    let member_first = give(&world, &founder, wish(&[("consensus_member", false)])).await;
    assert_eq!(code(member_first), Code::FailedPrecondition);
    // Both at once is in order, and then it is the last member that is refused, with nothing changed.
    let both = wish(&[("consensus_member", false), ("kubernetes_controller", false)]);
    let refused = give(&world, &founder, both).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(detail::margin(&refused).is_some());
    assert_eq!(roles(&founder).await, (true, true, false));
    give(&world, &founder, wish(&[("kubernetes_controller", false)])).await.unwrap();
    give(&world, &founder, only("kubernetes_controller")).await.unwrap();
    assert_eq!(roles(&founder).await, (true, true, false));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_healthy_node_is_put_into_the_queue() {
    let world = World::start().await;
    let (waiting, silent) = (Machine::new(), world.enrol().await);
    world.register(&waiting).await.unwrap();
    for role in ["consensus_member", "kubernetes_worker"] {
        let refused = give(&world, &waiting, only(role)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("the node is NEW"), "{}", refused.message());
    }
    // The leader is too new to tell, and will know within seconds.
    let refused = give(&world, &silent, only("consensus_member")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("HEALTH_UNKNOWN"), "{}", refused.message());
    assert_eq!(code(give(&world, &Machine::new(), only("consensus_member")).await), Code::NotFound);
    let mut management = world.management().await;
    assert_eq!(code(management.update_node_roles(only("consensus_member")).await), Code::InvalidArgument);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_to_be_a_member_waits_and_can_be_taken_back() {
    let world = World::start().await;
    let node = world.healthy().await;
    // To take another member in, the founder's etcd is started anew with other timing, so some answers are to ask again.
    let ask = async |wanted: &UpdateNodeRolesRequest| {
        settled(&world, async || give(&world, &node, wanted.clone()).await).await
    };
    ask(&only("consensus_member")).await.unwrap();
    ask(&only("consensus_member")).await.unwrap();
    // Nobody starts a member on it, so it either waits or is being added.
    let state = world.etcd.state();
    let there = async |key: String| settled(&world, async || Ok(state.get(&key).await?.is_some())).await.unwrap();
    assert!(there(layout::queued_join(&node.id())).await || there(layout::membership_intent()).await);
    ask(&wish(&[("consensus_member", false)])).await.unwrap();
    assert!(!there(layout::queued_join(&node.id())).await && !there(layout::membership_intent()).await);
    let record = settled(&world, async || Ok(state.node(&node.id()).await?)).await.unwrap().unwrap();
    assert!(!record.value.is_consensus_member());
    world.finish().await;
}
