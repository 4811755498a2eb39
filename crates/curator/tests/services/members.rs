//! GetConsensusStatus, GetMembers and the status of the cluster.

use polis_proto::cluster::GetStatusRequest;
use polis_proto::curator_api::GetConsensusStatusRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::get_consensus_status_response::etcd_member::Status as MemberStatus;
use polis_proto::curator_state::DecommissionPhase;
use polis_proto::enrolment::GetMembersRequest;

use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_members_are_told_in_each_form() {
    let world = World::start().await;
    let node = world.healthy().await;
    let founder = world.etcd.node_id().to_string();
    let status = CuratorClient::new(world.channel_of(&node)).get_consensus_status(GetConsensusStatusRequest {}).await;
    let members = status.unwrap().into_inner().etcd_member;
    assert_eq!(members.len(), 1);
    assert_eq!((&*members[0].id, members[0].status()), (&*founder, MemberStatus::Full));
    let answer = world.enrolment_of(&node).get_members(GetMembersRequest {}).await.unwrap().into_inner();
    assert_eq!(answer.members.len(), 1);
    let member = &answer.members[0];
    assert_eq!((&*member.node_id, member.learner, member.started), (&*founder, false, true));
    assert_eq!(member.public_key, world.etcd.node_key.public().as_bytes());
    let list = polis_unlock::SignedMemberList::verify(answer.signed_list.unwrap(), &world.authority);
    assert_eq!(list.unwrap().list().epoch(), polis_unlock::Epoch::FIRST);

    let status = world.cluster().await.get_status(GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.cluster_id, world.authority.cluster_id().to_string());
    assert_eq!(status.leader_node_id, founder);
    assert!(status.raft_term > 0);
    assert_eq!((status.quorum, status.margin, status.members.len()), (1, 0, 1));
    let member = &status.members[0];
    assert!(member.reachable && member.leads_raft && !member.learner && !member.etcd_version.is_empty());
    assert_eq!((status.change.is_some(), status.queue.len(), status.alarms.len()), (false, 0, 0));
    assert_eq!(status.heartbeats.len(), 2);
    for heartbeat in status.heartbeats {
        // The founder leads, so it has heard of itself.
        assert!(heartbeat.age.is_some() && heartbeat.other_process.is_empty(), "{heartbeat:?}");
        assert_eq!(heartbeat.decommission(), DecommissionPhase::None);
    }
    world.finish().await;
}
