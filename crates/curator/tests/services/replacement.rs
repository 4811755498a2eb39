//! ReplaceMember.

use polis_proto::enrolment::ReplaceMemberRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::ClientIdentity;
use tonic::Code;
use tonic::transport::Channel;

use crate::world::{Machine, World, code};

async fn replace(channel: Channel, reason: &str) -> Code {
    code(EnrolmentClient::new(channel).replace_member(ReplaceMemberRequest { reason: reason.to_owned() }).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_asks_for_its_own_member_and_for_no_other() {
    let world = World::start().await;
    let worker = world.healthy().await;
    let roles = async || world.node(&world.etcd.node_id()).await.roles.unwrap();
    let before = roles().await;
    // One that has no member has nothing to be replaced.
    assert_eq!(replace(world.channel_of(&worker), "the log ends in the middle").await, Code::Ok);
    assert_eq!(replace(world.channel_of(&worker), &"x".repeat(1024)).await, Code::Ok);
    assert_eq!(replace(world.channel_of(&worker), &"x".repeat(1025)).await, Code::InvalidArgument);
    // Without the founder's there would be none.
    assert_eq!(replace(world.founder(), "the log ends in the middle").await, Code::FailedPrecondition);
    assert_eq!(replace(world.owner().await, "an owner is no node").await, Code::PermissionDenied);
    let stranger = world.channel(&ClientIdentity::ephemeral(&Machine::new().key));
    let refused = replace(stranger, "nobody").await;
    assert!(matches!(refused, Code::PermissionDenied | Code::Unauthenticated), "{refused:?}");
    assert_eq!(roles().await, before);
    world.finish().await;
}
