//! GetStatus: what the cluster is doing.

use polis_identity::NodeId;
use polis_proto::cluster::GetStatusResponse;
use polis_proto::cluster::get_status_response::{Change, Member, NodeHeartbeat, QueuedJoin};
use polis_proto::curator_state::DecommissionPhase;
use polis_supervisor::with_causes;
use tokio::time::Instant;
use tonic::Status;

use crate::LeaderState;
use crate::membership::{self, MembersStatus, MembersStatusError, Operation};
use crate::services::core::Core;

/// How it stands with the cluster at this moment.
pub(super) async fn status(core: &Core, leader: &LeaderState) -> Result<GetStatusResponse, Status> {
    let status = core.members.status(leader).await.map_err(|error| match error {
        MembersStatusError::Members(error) => Status::unavailable(with_causes(&error)),
        MembersStatusError::State(error) => error.into(),
    })?;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(GetStatusResponse {
        cluster_id: core.identity.authority().cluster_id().to_string(),
        leader_node_id: leader.node_id().to_string(),
        raft_term: leader.raft_term(),
        epoch: status.epoch.map(Into::into),
        members: members(&status),
        quorum: count(status.margin.quorum()),
        margin: status.margin.spare(),
        heartbeats: heartbeats(core),
        alarms: status.survey.alarms,
        change: status.change.map(change),
        queue: status.queue.into_iter().map(queued).collect(),
    })
}

fn members(status: &MembersStatus) -> Vec<Member> {
    let survey = &status.survey;
    let all = survey.members.iter().zip(&status.nodes);
    let members = all.map(|(surveyed, node)| Member {
        node_id: node.to_string(),
        member_id: format!("{:x}", surveyed.member.id),
        learner: surveyed.member.is_learner,
        leads_raft: survey.leader == Some(surveyed.member.id),
        reachable: surveyed.is_reachable(),
        lag: surveyed.lag,
        database_bytes: surveyed.database_bytes,
        etcd_version: surveyed.version.map(|version| version.to_string()).unwrap_or_default(),
    });
    members.collect()
}

fn change(change: membership::Change) -> Change {
    let (operation, node) = match change.operation {
        Operation::Add(node) => ("add", node),
        Operation::Remove(node) => ("remove", node),
    };
    Change {
        operation: operation.into(),
        node_id: node.to_string(),
        waiting_for: change.waiting_for,
        running_for: change.running_for.try_into().ok(),
    }
}

fn queued(queued: membership::QueuedNode) -> QueuedJoin {
    QueuedJoin { node_id: queued.node.to_string(), reason: queued.reason, attempts: queued.attempts }
}

/// Every node, with the age of its last heartbeat.
fn heartbeats(core: &Core) -> Vec<NodeHeartbeat> {
    let now = Instant::now();
    let heartbeat = |id: NodeId| {
        let enrolment = core.nodes.view(&id).enrolment;
        let decommission = enrolment.map_or(DecommissionPhase::None, |known| known.value.decommission());
        NodeHeartbeat {
            node_id: id.to_string(),
            age: core.heartbeats.age(&id, now).and_then(|age| age.try_into().ok()),
            decommission: decommission.into(),
            other_process: core
                .heartbeats
                .other_process(&id, now)
                .map(|address| address.to_string())
                .unwrap_or_default(),
        }
    };
    core.nodes.living().into_iter().map(heartbeat).collect()
}
