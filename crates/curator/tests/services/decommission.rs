//! DecommissionNode and what the node reports meanwhile.

use polis_curator::layout;
use polis_identity::NodeId;
use polis_proto::api::DecommissionNodeRequest;
use polis_proto::api::decommission_node_request::Node as Target;
use polis_proto::common::NodeState;
use polis_proto::curator_api::JoinNodeRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_state::{DecommissionPhase, Epoch, UnfinishedRemoval};
use polis_proto::enrolment::ReportNodeRequest;
use polis_rpc::ClientIdentity;
use prost::Message as _;
use tonic::{Code, Status};

use crate::deletion::delete;
use crate::roles::{give, only, wish};
use crate::world::{INSECURE, Machine, World, code};

pub(crate) async fn decommission(world: &World, machine: &Machine) -> Result<(), Status> {
    let node = Some(Target::Id(machine.id().to_string()));
    world.management().await.decommission_node(DecommissionNodeRequest { node }).await.map(|_| ())
}

async fn report(world: &World, machine: &Machine, phase: DecommissionPhase) -> Result<(), Status> {
    let request = ReportNodeRequest { decommission: phase.into(), ..ReportNodeRequest::default() };
    world.enrolment_of(machine).report_node(request).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_asked_cleans_up_and_does_not_come_back() {
    let world = World::start().await;
    let node = world.healthy().await;
    let state = async || world.node(&node.id()).await.state();
    assert_eq!(code(report(&world, &node, DecommissionPhase::CleaningUp).await), Code::FailedPrecondition);
    give(&world, &node, only("kubernetes_worker")).await.unwrap();
    assert_eq!(code(decommission(&world, &node).await), Code::FailedPrecondition, "it has a role");
    give(&world, &node, wish(&[("kubernetes_worker", false)])).await.unwrap();
    decommission(&world, &node).await.unwrap();
    decommission(&world, &node).await.unwrap();
    for role in ["kubernetes_worker", "consensus_member"] {
        assert_eq!(code(give(&world, &node, only(role)).await), Code::FailedPrecondition, "{role}");
    }
    report(&world, &node, DecommissionPhase::CleaningUp).await.unwrap();
    assert_eq!(state().await, NodeState::Up, "as the wire has it");
    assert_eq!(code(delete(&world, &node, false, false).await), Code::FailedPrecondition, "it is not done yet");
    report(&world, &node, DecommissionPhase::Decommissioned).await.unwrap();
    report(&world, &node, DecommissionPhase::Decommissioned).await.unwrap();
    report(&world, &node, DecommissionPhase::CleaningUp).await.unwrap();
    assert_eq!(state().await, NodeState::Decommissioned);
    decommission(&world, &node).await.unwrap();
    // It is no node any more that could begin again.
    assert_eq!(code(world.register(&node).await), Code::FailedPrecondition);
    assert_eq!(code(world.approve(&node).await), Code::FailedPrecondition);
    assert_eq!(code(world.commit(&node, INSECURE, &[]).await), Code::FailedPrecondition);
    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&node.join_key)));
    assert_eq!(code(joins.join_node(JoinNodeRequest::default()).await), Code::FailedPrecondition);
    // It is erased, so that it helps nobody and nobody helps it.
    let (founder, gone) = (world.etcd.node_id(), Machine::new().id());
    let removal = |removed: NodeId| UnfinishedRemoval {
        node_id: removed.to_string(),
        epoch: Some(Epoch { incarnation: 1, epoch: 9 }),
        shares_needed: 1,
        helpers: vec![founder.to_string(), node.id().to_string()],
    };
    let root = world.etcd.root();
    for removed in [gone, node.id()] {
        root.put("test", layout::unfinished_removal(&removed), removal(removed).encode_to_vec()).await.unwrap();
    }
    delete(&world, &node, false, false).await.unwrap();
    let left = root.list(layout::unfinished_removals()).await.unwrap().entries;
    let left: Vec<_> = left.iter().map(|pair| UnfinishedRemoval::decode(&pair.value[..]).unwrap()).collect();
    assert_eq!(left, [UnfinishedRemoval { helpers: vec![founder.to_string()], ..removal(gone) }]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_idle_node_that_is_up_is_decommissioned() {
    let world = World::start().await;
    let waiting = Machine::new();
    world.register(&waiting).await.unwrap();
    assert_eq!(code(decommission(&world, &waiting).await), Code::FailedPrecondition);
    assert_eq!(code(decommission(&world, &Machine::new()).await), Code::NotFound);
    let mut management = world.management().await;
    assert_eq!(code(management.decommission_node(DecommissionNodeRequest { node: None }).await), Code::InvalidArgument);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_reports_is_kept() {
    let world = World::start().await;
    let node = world.enrol().await;
    let mut enrolment = world.enrolment_of(&node);
    let epoch = |epoch| Some(Epoch { incarnation: 1, epoch });
    let report = |share_key: Vec<u8>, number| ReportNodeRequest {
        share_key,
        members_epoch: epoch(number),
        ..ReportNodeRequest::default()
    };
    enrolment.report_node(report(vec![9; 32], 7)).await.unwrap();
    enrolment.report_node(report(Vec::new(), 5)).await.unwrap();
    assert_eq!(code(enrolment.report_node(report(vec![9; 31], 8)).await), Code::InvalidArgument);
    let known = world.leader().await;
    let known = known
        .get_message::<polis_proto::curator_state::NodeEnrolment>(&layout::enrolment(&node.id()))
        .await
        .unwrap()
        .unwrap()
        .value;
    assert_eq!((known.share_key, known.members_epoch), (vec![9; 32], epoch(7)));
    assert_eq!(known.commit_hash.len(), 32, "what the commit left is still there");
    world.finish().await;
}
