//! [`LeaderJudge`]: sees to it that this node follows leaders of its own side only ([`allegiance`](crate::allegiance)).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::Phase;
use polis_curator::Leadership;
use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::enrolment::WatchOrdersRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::{Judge, is_transport_failure};
use polis_unlock::{Lineage, SignedMemberList};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::transport::Channel;

use crate::allegiance::{
    Candidate, CandidateList, OwnMember, PATIENCE, Verdict, is_own_leader, may_follow, may_follow_unseen,
};
use crate::control_plane::ControlPlane;
use crate::identity::Identity;
use crate::shared::Shared;

/// How long a leader has to show its list of members: it has it in memory.
const LIST_DEADLINE: Duration = Duration::from_secs(2);

/// Judges leaders by the member of this node, by the list of members that it knows, and by theirs.
#[derive(Clone)]
pub(crate) struct LeaderJudge {
    own: NodeId,
    authority: AuthorityCertificate,
    control_plane: ControlPlane,
    members: watch::Receiver<Option<Arc<SignedMemberList>>>,
}

impl fmt::Debug for LeaderJudge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LeaderJudge").field("own", &self.own).finish_non_exhaustive()
    }
}

impl LeaderJudge {
    pub(crate) fn new(shared: &Shared, identity: &Identity) -> Self {
        Self {
            own: identity.node_id(),
            authority: identity.authority.clone(),
            control_plane: shared.settings.control_plane.clone(),
            members: shared.members.subscribe(),
        }
    }

    /// Whether this node believes somebody who shows no list of members, after a search since then.
    pub(crate) fn believes_the_unseen(&self, since: Instant) -> bool {
        match may_follow_unseen(self.own_member()) {
            Verdict::Follow => true,
            Verdict::WhenPatienceEnds => since.elapsed() >= PATIENCE,
            Verdict::Never => false,
        }
    }

    fn own_member(&self) -> OwnMember {
        own_member(&self.control_plane, &self.own)
    }

    async fn look(&self, leader: NodeId, channel: &Channel, since: Instant) -> Result<(), Status> {
        if is_own_leader(self.own_member(), &leader) || self.members.borrow().is_none() {
            return Ok(());
        }
        let shown = timeout(LIST_DEADLINE, list_of(channel, &self.authority)).await;
        let shown = shown.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not show its list of members")));
        let (list, refusal) = match shown {
            Ok(list) => (list, None),
            // Nobody answered, or not to us.
            Err(status) if is_transport_failure(&status) => return Err(status),
            Err(status) => (None, Some(status)),
        };
        // Read now, as time has passed. Who knows no list has never heard of any side.
        let Some(known) = self.members.borrow().clone() else { return Ok(()) };
        let list = list.map(|list| CandidateList {
            epoch: list.list().epoch(),
            lineage: list.list().lineage(known.list()),
            names_us: list.list().member(&self.own).is_some(),
        });
        match may_follow(self.own_member(), &Candidate { node_id: leader, list }) {
            Verdict::Follow => Ok(()),
            Verdict::WhenPatienceEnds if since.elapsed() >= PATIENCE => {
                tracing::warn!(%leader, "no leader of this node's own side was found; another one is followed");
                Ok(())
            }
            Verdict::WhenPatienceEnds | Verdict::Never => Err(refusal.unwrap_or_else(|| other_side(list))),
        }
    }
}

impl Judge for LeaderJudge {
    fn judge<'a>(&'a self, leader: NodeId, channel: &'a Channel, since: Instant) -> BoxFuture<'a, Result<(), Status>> {
        self.look(leader, channel, since).boxed()
    }
}

/// How the consensus member of this node is, as far as following is concerned.
fn own_member(control_plane: &ControlPlane, own: &NodeId) -> OwnMember {
    let Some(member) = control_plane.member().borrow().clone() else { return OwnMember::None };
    let has_leader = {
        let status = member.status();
        let status = status.borrow();
        match status.phase {
            Phase::Removed => return OwnMember::None,
            Phase::Ready | Phase::Learner => status.leader.is_some(),
            Phase::Down | Phase::Starting | Phase::Leaderless | Phase::Hanging => false,
        }
    };
    if !has_leader {
        return OwnMember::Lost;
    }
    let curator = control_plane.curator().borrow().clone();
    let leader = curator.and_then(|curator| match &*curator.leadership().borrow() {
        Leadership::Leader(_) => Some(*own),
        Leadership::Follower { leader, .. } => Some(*leader),
        Leadership::Unsettled => None,
    });
    OwnMember::Works { leader }
}

/// The list of members of the leader at the other end of a channel; `None` while it has none.
pub(super) async fn list_of(
    channel: &Channel,
    authority: &AuthorityCertificate,
) -> Result<Option<SignedMemberList>, Status> {
    let mut orders = EnrolmentClient::new(channel.clone()).watch_orders(WatchOrdersRequest {}).await?.into_inner();
    let first = orders.message().await?;
    Ok(first.and_then(|first| first.signed_list).and_then(|wire| SignedMemberList::verify(wire, authority).ok()))
}

fn other_side(list: Option<CandidateList>) -> Status {
    Status::failed_precondition(match list {
        Some(list) if list.lineage == Lineage::Parted => format!(
            "it leads another side, of incarnation {}, which was made a cluster of its own by `polis cluster recover` apart from this one; \
             this node does not follow it",
            list.epoch.incarnation
        ),
        Some(list) => format!(
            "it leads another side, of incarnation {}, which one node was made a cluster of its own by `polis cluster recover`; this \
             node does not follow it",
            list.epoch.incarnation
        ),
        None => "it does not show its list of members, so that it is not known which side it leads".to_owned(),
    })
}
