//! What the leader does next about the members: from all that it knows to one step. Pure.
//!
//! Each step is one call to etcd or one transaction, and after each the world is looked at again; so it does not matter at
//! which of them a leader dies, and the next one adopts what it finds. The order of a change is that of `cold-start.md`,
//! "Membership change": an intent with a signed list of the members before and after together, the call, a list of the members
//! after. A learner comes first, so that a joiner that never starts costs nobody anything.
//!
//! Where members split the keys of their data, the call waits until they have split them so that every quorum before and after
//! it opens (`splits`). Only those are waited for that answer, and not for ever: whoever does not split in time is passed over, as
//! long as a quorum of those that then vote has. Without that, an addition is given up, and a removal is withdrawn. The member that
//! goes is never waited for.
//!
//! Membership of etcd is the truth (metropolis.md G.6): when nothing is under way, records that say something else are
//! corrected, one thing at a time.

mod splitting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_identity::NodeId;
use polis_unlock::Epoch;

use self::splitting::splitting;
use super::margin::{MAX_MEMBERS, Operation};
use super::splits::{Keeping, RemovalProgress, Unfinished};

/// How long the leader has patience with a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// How long a learner may take to start.
    pub start: Duration,
    /// How long a learner may make no progress while it catches up.
    pub catch_up: Duration,
    /// How long it may take until one more member has split its key.
    pub split: Duration,
    /// How long a removal may be refused for want of a quorum before it is withdrawn.
    pub refused: Duration,
    /// How long a node rests after an attempt with it was given up, so that others have their turn and a node that fails each
    /// time does not keep everybody busy.
    pub rest: Duration,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            // A process start and a few round trips on a node that is up; after this long something is wrong there, and others
            // wait.
            start: Duration::from_secs(60),
            // A database at its quota comes as one snapshot, which takes this long over 60 Mbit/s.
            catch_up: Duration::from_secs(300),
            // Two rewrites of a small file and a few round trips; after this long something is wrong with that member, and others
            // wait.
            split: Duration::from_secs(30),
            // A member that restarts is back by then.
            refused: Duration::from_secs(10),
            rest: Duration::from_secs(60),
        }
    }
}

/// All that a decision depends on, as the leader has just read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    /// The node that leads; `None` only before the first look.
    pub(crate) leader: Option<NodeId>,
    /// The members, as etcd lists them, read before the nodes: so a node that was made meanwhile is not mistaken for a member
    /// without a node.
    pub(crate) members: Vec<MemberFacts>,
    /// The nodes with a record.
    pub(crate) nodes: BTreeMap<NodeId, NodeFacts>,
    /// The change that is under way.
    pub(crate) intent: Option<Intent>,
    /// Nodes that wait, in order.
    pub(crate) queue: Vec<Waiter>,
    /// The nodes in the signed list of members.
    pub(crate) listed: BTreeSet<NodeId>,
    /// The epoch of that list; absent in a cluster that has none yet.
    pub(crate) epoch: Option<Epoch>,
    /// The list says something of these nodes that is not so any more.
    pub(crate) is_list_stale: bool,
    /// How the nodes of members, and of a joiner, keep their keys; who is not here needs nobody.
    pub(crate) keys: BTreeMap<NodeId, Keeping>,
    /// The newest list that each of these nodes has made durable.
    pub(crate) holds: BTreeMap<NodeId, Epoch>,
    /// Nodes whose members answer. Asked for only when it decides.
    pub(crate) reachable: BTreeSet<NodeId>,
    /// Removals that are not finished.
    pub(crate) unfinished: Vec<Unfinished>,
    /// The leader's member has the timing for a network.
    pub(crate) network_timing: bool,
    /// How the intent's change goes, as far as this leader has watched it.
    pub(crate) attempt: Attempt,
    /// For how long it has patience.
    pub(crate) budgets: Budgets,
}

/// One member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberFacts {
    /// etcd's id.
    pub(crate) id: u64,
    /// The node whose key its address is derived from; `None` when no record, intent or queue names such a node.
    pub(crate) node: Option<NodeId>,
    /// It has no vote.
    pub(crate) is_learner: bool,
}

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// It is UP.
    pub(crate) is_up: bool,
    /// It has the role of a consensus member.
    pub(crate) has_role: bool,
}

/// The change that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    /// What is done.
    pub(crate) operation: Operation,
}

/// A node that waits to become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The node.
    pub(crate) node: NodeId,
    /// It is up and healthy, and has not failed a moment ago.
    pub(crate) is_ready: bool,
}

/// How a change goes, as far as this leader has watched it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The joiner's etcd has been seen to answer, now or earlier.
    pub(crate) has_started: bool,
    /// For how long nothing has got any further.
    pub(crate) stalled_for: Duration,
    /// For how long the removal has been refused.
    pub(crate) refused_for: Duration,
    /// For how long no further member has split its key.
    pub(crate) unsplit_for: Duration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Idle,
    /// Nothing but wait, and for what.
    Wait(Waiting),
    /// Restart this node's member, the only one, with the timing for a network. Before the learner is added: a member alone
    /// elects itself much sooner.
    UseNetworkTiming {
        /// The node that is about to join.
        joiner: NodeId,
    },
    /// One transaction: the intent, and the list of the members before and after together.
    Begin(Operation),
    /// Call to etcd: add the joiner as a learner.
    AddLearner(NodeId),
    /// One transaction: the joiner's role, with its credentials and the members as etcd lists them.
    GrantRole(NodeId),
    /// Call to etcd: give the learner its vote, as soon as it has caught up. The margin is checked right before.
    Promote(NodeId),
    /// One transaction: the intent to add becomes one to remove, the role goes, and the node is put at the end of the queue.
    GiveUp {
        /// The joiner.
        node: NodeId,
        /// Why.
        reason: GaveUp,
    },
    /// Call to etcd: hand leadership over, as the leader itself is to be removed.
    HandOver,
    /// Call to etcd: remove the member. The margin is checked right before.
    Remove(NodeId),
    /// One transaction: the intent to remove goes, as it is refused for too long.
    Withdraw(NodeId),
    /// One transaction: the intent goes, the list is that of the members as they are. A joiner leaves the queue; after a
    /// removal the roles go, too.
    Complete(Operation),
    /// One transaction: the node leaves the queue, as it need not or cannot join.
    Dequeue(NodeId),
    /// Call to etcd: remove a member that is no node, or a learner that is not to become a member. The margin is checked right
    /// before.
    RemoveStranger {
        /// etcd's id.
        id: u64,
        /// It has no vote.
        is_learner: bool,
    },
    /// One transaction: a member's node gets the role.
    GiveRole(NodeId),
    /// One transaction: a node that is no member loses the role, and those that need it.
    TakeRole(NodeId),
    /// One transaction: the signed list is made to say who the members are.
    Relist,
    /// One transaction: the removal of this node is finished.
    Finish(NodeId),
    /// One transaction: nothing more is expected of the removal of this node.
    Abandon {
        /// The node.
        node: NodeId,
        /// Nodes that were deleted before they had heard of it.
        deaf: BTreeSet<NodeId>,
    },
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The leader is not both a node and a member with a vote: so its own state is doubtful, and nothing is done.
    LeaderDoubtful,
    /// There is no room for another member.
    Full,
    /// No node in the queue is up and healthy.
    NobodyReady,
    /// Members are to split their keys, so that all quorums before and after the change open.
    Splitting {
        /// Those that can be asked and have not done it yet.
        nodes: BTreeSet<NodeId>,
        /// Members after the change that need not, or have.
        ready: usize,
        /// How many of them there must be.
        needed: usize,
    },
}

/// Why a joiner was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// Its etcd has not started.
    NotStarted,
    /// It does not catch up.
    NoProgress,
    /// It has not split its key, or too few others have.
    NotSplit,
    /// Its node was deleted, or is not up any more.
    NodeGone,
}

impl GaveUp {
    /// For people.
    #[must_use]
    pub(crate) fn text(self, budgets: &Budgets) -> String {
        match self {
            Self::NotStarted => format!(
                "its consensus member did not start within {:?}; look at the log of etcd on that node",
                budgets.start
            ),
            Self::NoProgress => format!(
                "its consensus member made no progress for {:?} while it caught up; look at its network and disk",
                budgets.catch_up
            ),
            Self::NotSplit => format!(
                "the members have not split the keys of their data so that a cluster with it comes back after a power failure, \
                 within {:?}; look at the conditions of the members and of this node (polis node status)",
                budgets.split
            ),
            Self::NodeGone => "the node was deleted, or is not up any more".into(),
        }
    }
}

impl World {
    /// Nodes with a vote.
    #[must_use]
    pub(crate) fn voters(&self) -> BTreeSet<NodeId> {
        self.members.iter().filter(|member| !member.is_learner).filter_map(|member| member.node).collect()
    }

    /// Members with a vote, those without a node included.
    fn voter_count(&self) -> usize {
        self.members.iter().filter(|member| !member.is_learner).count()
    }

    fn member(&self, node: NodeId) -> Option<&MemberFacts> {
        self.members.iter().find(|member| member.node == Some(node))
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_up)
    }
}

/// The next step.
#[must_use]
pub(crate) fn plan(world: &World) -> Step {
    let leads_as_member = |leader: NodeId| {
        world.nodes.contains_key(&leader) && world.member(leader).is_some_and(|member| !member.is_learner)
    };
    match (world.leader, world.intent) {
        (Some(leader), Some(Intent { operation: Operation::Add(node) })) if leads_as_member(leader) => {
            continue_addition(world, node)
        }
        (Some(leader), Some(Intent { operation: Operation::Remove(node) })) if leads_as_member(leader) => {
            continue_removal(world, leader, node)
        }
        (Some(leader), None) if leads_as_member(leader) => {
            repair(world).or_else(|| finish(world)).or_else(|| from_queue(world)).unwrap_or(Step::Idle)
        }
        (Some(_) | None, _) => Step::Wait(Waiting::LeaderDoubtful),
    }
}

fn continue_addition(world: &World, node: NodeId) -> Step {
    let member = world.member(node);
    if member.is_some_and(|member| !member.is_learner) {
        return Step::Complete(Operation::Add(node));
    }
    if !world.is_up(node) {
        return Step::GiveUp { node, reason: GaveUp::NodeGone };
    }
    if member.is_none() {
        // etcd takes one learner at a time, so one that a deposed leader has added late would hold up this one for ever.
        if let Some(other) = world.members.iter().find(|member| member.is_learner) {
            return Step::RemoveStranger { id: other.id, is_learner: true };
        }
        return if world.voter_count() == 1 && !world.network_timing {
            Step::UseNetworkTiming { joiner: node }
        } else {
            Step::AddLearner(node)
        };
    }
    if !world.nodes[&node].has_role {
        return Step::GrantRole(node);
    }
    // Before its patience with the joiner: while others split their keys, nothing is expected of it.
    if let Some(step) = splitting(world, Operation::Add(node)) {
        return step;
    }
    let attempt = world.attempt;
    if !attempt.has_started && attempt.stalled_for >= world.budgets.start {
        return Step::GiveUp { node, reason: GaveUp::NotStarted };
    }
    if attempt.stalled_for >= world.budgets.catch_up {
        return Step::GiveUp { node, reason: GaveUp::NoProgress };
    }
    Step::Promote(node)
}

fn continue_removal(world: &World, leader: NodeId, node: NodeId) -> Step {
    match world.member(node) {
        None => Step::Complete(Operation::Remove(node)),
        Some(_) if world.attempt.refused_for >= world.budgets.refused => Step::Withdraw(node),
        // What has no vote takes none from a quorum.
        Some(member) if member.is_learner => Step::Remove(node),
        Some(_) => splitting(world, Operation::Remove(node)).unwrap_or(if node == leader {
            Step::HandOver
        } else {
            Step::Remove(node)
        }),
    }
}

/// What is not as it should be while no change is under way; the first of it.
fn repair(world: &World) -> Option<Step> {
    if let Some(stranger) =
        world.members.iter().find(|member| member.node.is_none_or(|node| !world.nodes.contains_key(&node)))
    {
        return Some(Step::RemoveStranger { id: stranger.id, is_learner: stranger.is_learner });
    }
    let role_of = |node: &NodeId| world.nodes.get(node).is_some_and(|node| node.has_role);
    let learner = world.members.iter().find(|member| member.is_learner);
    if let Some((learner, node)) = learner.and_then(|learner| Some((learner, learner.node?))) {
        // Whoever has added it, and whatever became of the intent: it goes on like any other, as long as somebody wants it. A call of
        // a deposed leader can still reach etcd, which knows no fence, after the next one has taken the learner away for good.
        let is_wanted = role_of(&node) || world.queue.iter().any(|waiter| waiter.node == node);
        return Some(if is_wanted {
            Step::Begin(Operation::Add(node))
        } else {
            Step::RemoveStranger { id: learner.id, is_learner: true }
        });
    }
    let voters = world.voters();
    if let Some(node) = voters.iter().find(|node| !role_of(node)) {
        return Some(Step::GiveRole(*node));
    }
    if let Some((node, _)) = world.nodes.iter().find(|(node, facts)| facts.has_role && !voters.contains(node)) {
        return Some(Step::TakeRole(*node));
    }
    (world.listed != voters || world.is_list_stale).then_some(Step::Relist)
}

/// The first removal of which enough nodes have heard, or never will.
fn finish(world: &World) -> Option<Step> {
    let is_node = |node: &NodeId| world.nodes.contains_key(node);
    world.unfinished.iter().find_map(|removal| match removal.progress(&world.holds, is_node) {
        RemovalProgress::Over => Some(Step::Finish(removal.node)),
        RemovalProgress::Endless { deaf } => Some(Step::Abandon { node: removal.node, deaf }),
        RemovalProgress::Waits { .. } => None,
    })
}

/// The first of the queue who can join.
fn from_queue(world: &World) -> Option<Step> {
    let needless = |waiter: &&Waiter| world.member(waiter.node).is_some() || !world.nodes.contains_key(&waiter.node);
    if let Some(waiter) = world.queue.iter().find(needless) {
        return Some(Step::Dequeue(waiter.node));
    }
    if world.queue.is_empty() {
        return None;
    }
    if world.voter_count() >= MAX_MEMBERS {
        return Some(Step::Wait(Waiting::Full));
    }
    // One that is down does not hold up the others.
    let Some(next) = world.queue.iter().find(|waiter| waiter.is_ready && world.is_up(waiter.node)) else {
        return Some(Step::Wait(Waiting::NobodyReady));
    };
    Some(if world.voter_count() == 1 && !world.network_timing {
        Step::UseNetworkTiming { joiner: next.node }
    } else {
        Step::Begin(Operation::Add(next.node))
    })
}

#[cfg(test)]
mod splitting_tests;
#[cfg(test)]
mod tests;
