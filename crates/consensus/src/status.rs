//! What the member of this node is doing, as others see it.

use std::net::Ipv6Addr;

use polis_identity::NodeId;

use crate::peer_url;
use crate::timing::Timing;
use crate::version::Version;

/// State of this node's member. Published on change only; nothing in it moves while nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is doing.
    pub phase: Phase,
    /// Process id of etcd, while it runs.
    pub process_id: Option<u32>,
    /// Version of etcd, once it is known.
    pub version: Option<Version>,
    /// Timing that it should have; etcd is being restarted when it has another.
    pub timing: Timing,
    /// Id of this member, as etcd says it; known once it has answered.
    pub member_id: Option<u64>,
    /// Id of the cluster, as etcd says it; known once it has answered. Polis has another one of its own.
    pub cluster_id: Option<u64>,
    /// Whether this member is one that learns: it has no vote yet.
    pub is_learner: bool,
    /// Member that leads; `None` when there is none, or it is not known.
    pub leader: Option<u64>,
    /// Raft's term; 0 when it is not known.
    pub raft_term: u64,
    /// The members, as this one knows them, ordered by id.
    pub members: Vec<Member>,
    /// etcd's database has reached its quota, here or elsewhere: it takes no writes. Room is made by itself where that is
    /// possible.
    pub no_space: bool,
    /// What etcd has said when it could not read the data of this member; etcd is not started again then.
    pub damage: Option<String>,
}

/// What the member of this node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// etcd does not run: not yet, or between two runs, or no more.
    Down,
    /// etcd runs and has not answered since it was started.
    Starting,
    /// etcd answers, as a member without a vote.
    Learner,
    /// The cluster has no leader, so that nothing can be read or written.
    Leaderless,
    /// A member with a vote that has answered a linearizable read since its start.
    Ready,
    /// etcd runs and does not answer, for longer than it should.
    Hanging,
    /// The cluster has removed this member, as its etcd said when it last ended. It runs now and then, as those who stay may need its
    /// vote to find out. Once the cluster itself says that the node is no member, the member is to be stopped and its data set aside
    /// ([`set_aside`](crate::set_aside)), after which the node may join anew.
    Removed,
}

impl Status {
    /// The state before the first start.
    pub(crate) const fn new(timing: Timing) -> Self {
        Self {
            phase: Phase::Down,
            process_id: None,
            version: None,
            timing,
            member_id: None,
            cluster_id: None,
            is_learner: false,
            leader: None,
            raft_term: 0,
            members: Vec::new(),
            no_space: false,
            damage: None,
        }
    }

    /// Whether reads and writes through this member work.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether this member leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader.is_some() && self.leader == self.member_id
    }

    /// The entry of this member.
    #[must_use]
    pub fn own_member(&self) -> Option<&Member> {
        self.members.iter().find(|member| Some(member.id) == self.member_id)
    }
}

/// One member of the cluster, as etcd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// etcd's id.
    pub id: u64,
    /// Node that it runs on. A member tells its name when it starts first; until then only its address is known.
    pub node_id: Option<NodeId>,
    /// Its identity address (`PeerAddress` of its node's key); `None` for a member that was not added by Polis.
    pub address: Option<Ipv6Addr>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
    /// Whether it has ever started.
    pub is_started: bool,
}

impl Member {
    pub(crate) fn from_etcd(member: etcd_client::proto::PbMember) -> Self {
        Self {
            id: member.id,
            node_id: member.name.parse().ok(),
            address: member.peer_ur_ls.first().and_then(|url| peer_url::parse(url)),
            is_learner: member.is_learner,
            is_started: !member.name.is_empty(),
        }
    }

    /// All members of an answer, ordered by id.
    pub(crate) fn list(members: Vec<etcd_client::proto::PbMember>) -> Vec<Self> {
        let mut members: Vec<Self> = members.into_iter().map(Self::from_etcd).collect();
        members.sort_by_key(|member| member.id);
        members
    }
}
