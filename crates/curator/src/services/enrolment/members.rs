//! The members of the consensus, as etcd lists them at this moment.

use std::collections::BTreeMap;

use polis_consensus::MembershipError;
use polis_identity::PeerAddress;
use polis_proto::curator_api::get_consensus_status_response::{EtcdMember, etcd_member::Status as MemberStatus};
use polis_proto::curator_state::SignedMemberList;
use polis_proto::enrolment::GetMembersResponse;
use polis_proto::enrolment::get_members_response::ConsensusMember as WireMember;
use polis_supervisor::with_causes;
use tonic::Status;

use crate::services::core::Core;
use crate::watch::ConsensusMember;
use crate::{LeaderState, layout};

/// What a joiner needs to start, and what everybody needs to find the members.
pub(super) async fn members(core: &Core, leader: &LeaderState) -> Result<GetMembersResponse, Status> {
    let signed_list = leader.get_message::<SignedMemberList>(&layout::epoch()).await?;
    let members = list(core).await?.into_iter().map(to_wire).collect();
    Ok(GetMembersResponse { members, signed_list: signed_list.map(|found| found.value) })
}

/// The members that are nodes of the cluster, learners among them, ordered by node. A joiner must be told exactly what etcd has,
/// so etcd is asked.
pub(in crate::services) async fn list(core: &Core) -> Result<Vec<ConsensusMember>, Status> {
    let listed = core.consensus.membership().members().await.map_err(unavailable)?;
    // A member tells its name when it starts first; its address says who it is from the beginning.
    let nodes = core.nodes.all();
    let by_address: BTreeMap<_, _> =
        nodes.iter().map(|node| (PeerAddress::of(&node.value.public_key).ip(), &node.value)).collect();
    let known = listed.iter().filter_map(|member| Some(ConsensusMember::of(member, by_address.get(&member.address?)?)));
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|member| member.node_id);
    Ok(known)
}

/// A member, as nodes are told.
pub(super) fn to_wire(member: ConsensusMember) -> WireMember {
    WireMember {
        node_id: member.node_id.to_string(),
        public_key: member.public_key.as_bytes().to_vec(),
        addresses: member.addresses.iter().map(ToString::to_string).collect(),
        learner: member.is_learner,
        started: member.is_started,
    }
}

/// A member, as Metropolis tells it.
pub(in crate::services) fn to_status(member: &ConsensusMember) -> EtcdMember {
    let status = if member.is_learner { MemberStatus::Learner } else { MemberStatus::Full };
    EtcdMember { id: member.node_id.to_string(), status: status.into() }
}

fn unavailable(error: MembershipError) -> Status {
    Status::unavailable(with_causes(&error))
}
