//! GetStatus: what the cluster is doing.

use std::collections::BTreeSet;

use polis_identity::NodeId;
use polis_proto::cluster::GetStatusResponse;
use polis_proto::cluster::get_status_response::{
    Change, ColdStart, Member, NodeHeartbeat, QueuedJoin, UnfinishedRemoval,
};
use polis_proto::curator_state::DecommissionPhase;
use polis_supervisor::with_causes;
use tokio::time::Instant;
use tonic::Status;

use crate::LeaderState;
use crate::membership::{self, MembersStatus, MembersStatusError, Operation};
use crate::services::core::Core;
use crate::services::recovery;

/// How it stands with the cluster at this moment.
pub(super) async fn status(core: &Core, leader: &LeaderState) -> Result<GetStatusResponse, Status> {
    let status = core.members.status(leader).await.map_err(|error| match error {
        MembersStatusError::Members(error) => Status::unavailable(with_causes(&error)),
        MembersStatusError::State(error) => error.into(),
    })?;
    let recovery_public_key = recovery::key(leader).await?;
    let with_blob = recovery::with_blob(leader, &status.nodes, &recovery_public_key).await?;
    Ok(GetStatusResponse {
        cluster_id: core.identity.authority().cluster_id().to_string(),
        leader_node_id: leader.node_id().to_string(),
        raft_term: leader.raft_term(),
        epoch: status.epoch.map(Into::into),
        members: members(&status, &with_blob),
        quorum: count(status.margin.quorum()),
        margin: status.margin.spare(),
        heartbeats: heartbeats(core),
        alarms: status.survey.alarms,
        change: status.change.map(change),
        queue: status.queue.into_iter().map(queued).collect(),
        cold_start: status.cold_start.map(cold_start),
        unfinished_removals: status.unfinished.into_iter().map(unfinished).collect(),
        recovery_public_key,
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn members(status: &MembersStatus, with_blob: &BTreeSet<NodeId>) -> Vec<Member> {
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
        split: status.splits.get(node).cloned(),
        list_epoch: status.lists.get(node).map(|epoch| (*epoch).into()),
        recovery_blob: with_blob.contains(node),
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

fn cold_start(cold_start: membership::ColdStart) -> ColdStart {
    ColdStart {
        summary: cold_start.summary,
        members_needed: cold_start.needed.map_or(0, count),
        members_needed_settled: count(cold_start.needed_settled),
        behind: cold_start.behind.iter().map(NodeId::to_string).collect(),
        two_confirmed: cold_start.two_confirmed,
        remark: cold_start.remark,
    }
}

fn unfinished(removal: membership::UnfinishedRemoval) -> UnfinishedRemoval {
    UnfinishedRemoval {
        node_id: removal.node.to_string(),
        epoch: Some(removal.epoch.into()),
        lacking: removal.lacking.iter().map(NodeId::to_string).collect(),
        shares_needed: count(removal.shares_needed),
        text: removal.text,
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
