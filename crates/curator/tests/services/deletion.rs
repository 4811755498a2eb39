//! DeleteNode: everything of a node goes, and a proof stays.

use polis_curator::layout;
use polis_proto::api::DeleteNodeRequest;
use polis_proto::api::delete_node_request::{Node as Target, SafetyBypassHasRoles, SafetyBypassNotDecommissioned};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::{HeartbeatRequest, JoinNodeRequest};
use polis_proto::enrolment::GetTombstoneRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::{ClientIdentity, detail};
use tonic::{Code, Status};

use crate::roles::{give, only};
use crate::world::{INSECURE, Machine, World, code};

pub(crate) async fn delete(
    world: &World,
    machine: &Machine,
    has_roles: bool,
    not_decommissioned: bool,
) -> Result<(), Status> {
    let request = DeleteNodeRequest {
        node: Some(Target::Id(machine.id().to_string())),
        safety_bypass_has_roles: has_roles.then_some(SafetyBypassHasRoles {}),
        safety_bypass_not_decommissioned: not_decommissioned.then_some(SafetyBypassNotDecommissioned {}),
    };
    world.management().await.delete_node(request).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_is_gone_and_told_so() {
    let world = World::start().await;
    let node = world.healthy().await;
    let (beats, incoming) = tokio::sync::mpsc::channel(1);
    let stream = futures::stream::unfold(incoming, async |mut incoming| Some((incoming.recv().await?, incoming)));
    let mut curator = world.curator_of(&node);
    let mut answers = curator.heartbeat(stream).await.unwrap().into_inner();
    beats.send(HeartbeatRequest {}).await.unwrap();
    world.within("it beats", answers.message()).await.unwrap().unwrap();

    delete(&world, &node, false, true).await.unwrap();
    // Its stream ends by itself, whether by the connection or by its next beat.
    let ended = world.within("the stream ends", async {
        loop {
            let _ = beats.try_send(HeartbeatRequest {});
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(status) => break Some(status),
            }
        }
    });
    ended.await;
    // Whatever it asks, it is shown the proof.
    let refused = world.tell_status(&node, "127.9.9.9").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    world.assert_tombstone(&refused, &node);
    let registered = world.register(&node).await.unwrap_err();
    assert_eq!(registered.code(), Code::FailedPrecondition);
    world.assert_tombstone(&registered, &node);
    let committed = world.commit(&node, INSECURE, &[]).await.unwrap_err();
    assert_eq!(committed.code(), Code::NotFound);
    world.assert_tombstone(&committed, &node);
    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&node.join_key)));
    assert_eq!(code(joins.join_node(JoinNodeRequest::default()).await), Code::NotFound);
    let deleted = delete(&world, &node, false, true).await.unwrap_err();
    assert_eq!(deleted.code(), Code::NotFound);
    world.assert_tombstone(&deleted, &node);

    // Nothing is left of it but the proof and the revocation.
    let id = node.id().to_string();
    let left = world.etcd.root().list("").await.unwrap();
    let left: Vec<_> =
        left.entries.iter().map(|pair| pair.key_text().into_owned()).filter(|key| key.contains(&id)).collect();
    assert_eq!(left, [layout::tombstone(&node.id())]);
    let serial = node.certificate.as_ref().unwrap().serial_number();
    let revocations = world.leader().await.revocations().await.unwrap();
    assert!(revocations.value.revoked().contains(serial));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hazard_needs_its_bypass() {
    let world = World::start().await;
    let node = world.healthy().await;
    give(&world, &node, only("kubernetes_worker")).await.unwrap();
    assert_eq!(code(delete(&world, &node, false, false).await), Code::FailedPrecondition);
    assert_eq!(code(delete(&world, &node, true, false).await), Code::FailedPrecondition);
    assert_eq!(code(delete(&world, &node, false, true).await), Code::FailedPrecondition);
    delete(&world, &node, true, true).await.unwrap();
    // One that only waits holds nothing; its certificate was never issued.
    let waiting = Machine::new();
    world.register(&waiting).await.unwrap();
    delete(&world, &waiting, false, false).await.unwrap();
    world.assert_tombstone(&world.register(&waiting).await.unwrap_err(), &waiting);
    // The same machine, erased, is another node.
    world.enrol().await;
    assert_eq!(code(delete(&world, &Machine::new(), true, true).await), Code::NotFound);
    let mut management = world.management().await;
    assert_eq!(code(management.delete_node(DeleteNodeRequest::default()).await), Code::InvalidArgument);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_consensus_member_is_not_deleted() {
    let world = World::start().await;
    let founder =
        Machine { key: polis_identity::NodeKey::from_secret(world.etcd.node_key.secret().clone()), ..Machine::new() };
    assert_eq!(code(delete(&world, &founder, false, true).await), Code::FailedPrecondition);
    let refused = delete(&world, &founder, true, true).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(detail::margin(&refused).is_some(), "{refused:?}");
    assert!(refused.message().contains("only consensus member"), "{}", refused.message());
    assert!(world.node(&founder.id()).await.roles.unwrap().consensus_member.is_some());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anybody_is_told_of_a_tombstone() {
    let world = World::start().await;
    let node = world.enrol().await;
    let mut enrolment = EnrolmentClient::new(world.anonymous());
    let mut ask = async |id: String| {
        let answer = enrolment.get_tombstone(GetTombstoneRequest { node_id: id }).await;
        answer.map(|answer| answer.into_inner().tombstone)
    };
    assert_eq!(ask(node.id().to_string()).await.unwrap(), None);
    delete(&world, &node, false, true).await.unwrap();
    let wire = ask(node.id().to_string()).await.unwrap().expect("it was deleted");
    let tombstone = polis_curator::SignedTombstone::verify(wire, &world.authority).unwrap();
    assert_eq!(tombstone.tombstone().node_id(), node.id());
    assert!(tombstone.tombstone().reason.contains("owner"), "{}", tombstone.tombstone().reason);
    assert_eq!(code(ask("nobody".into()).await), Code::InvalidArgument);
    world.finish().await;
}

/// A node whose record is gone without a proof, as after an old snapshot was restored, is told just that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_unknown_without_proof_is_told_that() {
    let world = World::start().await;
    let node = world.healthy().await;
    world.etcd.root().delete("test", layout::node(&node.id())).await.unwrap();
    let mut nodes = world.curator.nodes().subscribe_node(node.id());
    let gone = async {
        let mut view = nodes.view();
        while view.record.is_some() {
            view = nodes.changed().await;
        }
    };
    world.within("the leader knows", gone).await;
    let beat = world.beat(&node).await.unwrap_err();
    let status = world.tell_status(&node, "127.9.9.9").await.unwrap_err();
    for refused in [beat, status] {
        assert_eq!(refused.code(), Code::NotFound);
        assert_eq!(detail::removed_node(&refused), None);
    }
    world.finish().await;
}
