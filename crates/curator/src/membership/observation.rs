//! What the leader reads before it decides: etcd's members first, then the state, at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::sync::Arc;

use polis_consensus::{Member, MembershipError, Transaction};
use polis_identity::{NodeId, PeerAddress, PublicKey};
use polis_proto::api::node::Health;
use polis_proto::common::{NodeState, NodeTpmUsage};
use polis_proto::curator_state::membership_intent::Operation as WireOperation;
use polis_proto::curator_state::{MembershipIntent, NodeEnrolment, QueuedJoin, UnfinishedRemoval as WireUnfinished};
use polis_unlock::{Epoch, MemberEntry, Recovery, SignedMemberList};
use tokio::time::Instant;

use super::Members;
use super::cold_start::{ColdStart, Reported, UnfinishedRemoval};
use super::margin::Operation;
use super::plan::{Attempt, Intent, MemberFacts, NodeFacts, Waiter, World};
use super::splits::{Keeping, Unfinished};
use crate::state::Versioned;
use crate::{LeaderState, NodeRecord, StateError, layout};

/// Reports that are read in one transaction: etcd takes 128 operations, with one for the fence of the leadership.
const READ_AT_ONCE: usize = 100;

/// The members could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObserveError {
    /// etcd did not list them.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// The state was not read.
    #[error(transparent)]
    State(#[from] StateError),
}

/// All that was read, with the revisions on which a transaction is conditioned.
pub(super) struct Observation {
    /// etcd's members.
    pub(super) members: Vec<Member>,
    /// The nodes.
    pub(super) records: BTreeMap<NodeId, Versioned<Arc<NodeRecord>>>,
    /// The change that is under way.
    pub(super) intent: Option<Versioned<OpenIntent>>,
    /// Nodes that wait, in order.
    pub(super) queue: Vec<Versioned<Queued>>,
    /// The signed list; absent in a cluster that is older than it.
    pub(super) list: Option<Versioned<SignedMemberList>>,
    /// What the nodes of members, of the change and of the queue have reported.
    pub(super) enrolments: BTreeMap<NodeId, Versioned<NodeEnrolment>>,
    /// Removals that are not finished.
    pub(super) unfinished: Vec<Versioned<Unfinished>>,
    /// Whether two members are confirmed to stay two.
    pub(super) two_confirmed: bool,
    /// Nodes by the addresses of their members.
    nodes_by_address: BTreeMap<Ipv6Addr, NodeId>,
    /// Revision of the store at which all this was read.
    pub(super) revision: i64,
}

/// A change that is under way, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenIntent {
    pub(super) operation: Operation,
    pub(super) public_key: PublicKey,
    pub(super) message: MembershipIntent,
}

impl OpenIntent {
    pub(super) fn node(&self) -> NodeId {
        match self.operation {
            Operation::Add(node) | Operation::Remove(node) => node,
        }
    }
}

/// A node that waits, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Queued {
    pub(super) node: NodeId,
    pub(super) public_key: PublicKey,
    pub(super) message: QueuedJoin,
}

impl Members {
    /// Reads everything.
    pub(super) async fn observe(&self, state: &LeaderState) -> Result<Observation, ObserveError> {
        // Before the nodes, so that a member whose node is made meanwhile is not taken for one without.
        let members = self.0.consensus.membership().members().await?;
        let transaction = Transaction::new()
            .list(layout::nodes())
            .get(layout::membership_intent())
            .list(layout::membership_queue())
            .get(layout::epoch())
            .get(layout::two_confirmed())
            .list(layout::unfinished_removals());
        let committed = state.read(transaction).await?;
        let mut found = committed.found.into_iter();
        let mut next = || found.next().unwrap_or_default();
        let records = state.state().records().decode_all(&next())?;
        let records: BTreeMap<NodeId, _> = records.into_iter().map(|record| (record.value.id, record)).collect();
        let intent = next().into_iter().next().map(|pair| {
            let found = Versioned { value: pair.value, revision: pair.mod_revision };
            read_intent(found.decode(&layout::membership_intent())?)
        });
        let intent = intent.transpose()?;
        let mut queue = Vec::new();
        for pair in next() {
            let key = pair.key_text().into_owned();
            let found = Versioned { value: pair.value, revision: pair.mod_revision };
            queue.push(read_queued(&key, found.decode(&key)?)?);
        }
        queue.sort_by_key(|queued| (queued.value.message.position, queued.value.node));
        let list = match next().into_iter().next() {
            Some(pair) => {
                let key = layout::epoch();
                let found = Versioned { value: pair.value, revision: pair.mod_revision }.decode(&key)?;
                let list = SignedMemberList::verify(found.value, self.authority(state).await?)
                    .map_err(|source| StateError::damaged(key, source))?;
                Some(Versioned { value: list, revision: found.revision })
            }
            None => None,
        };
        let two_confirmed = !next().is_empty();
        let mut unfinished = Vec::new();
        for pair in next() {
            let key = pair.key_text().into_owned();
            let found = Versioned { value: pair.value, revision: pair.mod_revision };
            let mut known = read_unfinished(&key, found.decode(&key)?)?;
            if known.value.helpers.is_empty() {
                let listed = list.iter().flat_map(|list| list.value.list().members());
                known.value.helpers = listed.map(|member| member.node_id).collect();
            }
            unfinished.push(known);
        }
        let keys = records
            .values()
            .map(|record| record.value.public_key)
            .chain(intent.iter().map(|intent| intent.value.public_key))
            .chain(queue.iter().map(|queued| queued.value.public_key));
        let nodes_by_address: BTreeMap<Ipv6Addr, NodeId> =
            keys.map(|key| (PeerAddress::of(&key).ip(), NodeId::of(&key))).collect();
        let of_members = members.iter().filter_map(|member| nodes_by_address.get(&member.address?).copied());
        let of_others = intent.iter().map(|intent| intent.value.node()).chain(queue.iter().map(|it| it.value.node));
        let of_helpers = unfinished.iter().flat_map(|known| known.value.helpers.iter().copied());
        let wanted: BTreeSet<NodeId> = of_members.chain(of_others).chain(of_helpers).collect();
        Ok(Observation {
            enrolments: enrolments(state, &wanted).await?,
            members,
            records,
            intent,
            queue,
            list,
            unfinished,
            two_confirmed,
            nodes_by_address,
            revision: committed.revision,
        })
    }

    /// The same as the plan needs it.
    pub(super) fn world(
        &self,
        state: &LeaderState,
        observation: &Observation,
        attempt: Attempt,
        resting: &dyn Fn(&NodeId) -> bool,
    ) -> World {
        let now = Instant::now();
        let nodes = observation.records.iter().map(|(id, record)| {
            let facts =
                NodeFacts { is_up: record.value.state == NodeState::Up, has_role: record.value.is_consensus_member() };
            (*id, facts)
        });
        let nodes: BTreeMap<NodeId, NodeFacts> = nodes.collect();
        let waiter = |queued: &Versioned<Queued>| {
            let node = queued.value.node;
            let is_healthy = observation
                .records
                .get(&node)
                .is_some_and(|record| self.0.heartbeats.health(record.value.state, &node, now) == Health::Healthy);
            Waiter { node, is_ready: is_healthy && !resting(&node) && observation.can_hold_shares(&node) }
        };
        World {
            leader: Some(*state.node_id()),
            members: observation.members.iter().map(|member| observation.facts(member)).collect(),
            queue: observation.queue.iter().map(waiter).collect(),
            nodes,
            intent: observation.intent.as_ref().map(|intent| Intent { operation: intent.value.operation }),
            listed: observation.listed(),
            epoch: observation.epoch(),
            is_list_stale: observation.is_list_stale(),
            keys: observation.keys(),
            holds: observation.holds(),
            reachable: observation.voters(),
            unfinished: observation.unfinished.iter().map(|known| known.value.clone()).collect(),
            network_timing: self.0.consensus.status().borrow().timing.is_network(),
            attempt,
            budgets: self.0.budgets,
        }
    }
}

impl Observation {
    /// The node that a member is on.
    pub(super) fn node_of(&self, member: &Member) -> Option<NodeId> {
        self.nodes_by_address.get(&member.address?).copied()
    }

    fn facts(&self, member: &Member) -> MemberFacts {
        MemberFacts { id: member.id, node: self.node_of(member), is_learner: member.is_learner }
    }

    /// Nodes with a vote.
    pub(super) fn voters(&self) -> BTreeSet<NodeId> {
        let voters = self.members.iter().filter(|member| !member.is_learner);
        voters.filter_map(|member| self.node_of(member)).collect()
    }

    /// A name for a member in the numbers of a margin: that of its node, or else one that is made of etcd's id.
    pub(super) fn name_of(&self, member: &Member) -> NodeId {
        let made = || format!("metropolis-{:032x}", member.id).parse().expect("it has the form of a node id");
        self.node_of(member).unwrap_or_else(made)
    }

    /// Names of all members with a vote, those without a node included.
    pub(super) fn voter_names(&self) -> BTreeSet<NodeId> {
        self.members.iter().filter(|member| !member.is_learner).map(|member| self.name_of(member)).collect()
    }

    /// The member on a node.
    pub(super) fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| self.node_of(member) == Some(node))
    }

    /// The nodes in the signed list.
    pub(super) fn listed(&self) -> BTreeSet<NodeId> {
        let list = self.list.iter().flat_map(|list| list.value.list().members());
        list.map(|member| member.node_id).collect()
    }

    /// How a node keeps its key. A node without a record is none any more, and needs nothing.
    pub(super) fn keeping(&self, node: &NodeId) -> Keeping {
        self.enrolments.get(node).map(|known| self.keeping_by(node, &known.value)).unwrap_or_default()
    }

    /// The same, by this report.
    pub(super) fn keeping_by(&self, node: &NodeId, enrolment: &NodeEnrolment) -> Keeping {
        let is_encrypted = self.records.get(node).is_some_and(|record| record.value.cluster_unlock_key.is_some());
        Keeping::of(is_encrypted, enrolment)
    }

    /// The same of all that matter.
    pub(super) fn keys(&self) -> BTreeMap<NodeId, Keeping> {
        self.enrolments.keys().map(|node| (*node, self.keeping(node))).collect()
    }

    /// The newest list that each node has made durable.
    pub(super) fn holds(&self) -> BTreeMap<NodeId, Epoch> {
        let epoch = |(node, known): (&NodeId, &Versioned<NodeEnrolment>)| {
            known.value.members_epoch.map(|epoch| (*node, Epoch::from(epoch)))
        };
        self.enrolments.iter().filter_map(epoch).collect()
    }

    /// Removals that are not finished.
    pub(super) fn unfinished(&self) -> Vec<UnfinishedRemoval> {
        let holds = self.holds();
        self.unfinished.iter().map(|known| UnfinishedRemoval::of(&known.value, &holds)).collect()
    }

    /// Nothing is noted any more of the removal of this node.
    pub(super) fn forget_removal(&self, node: NodeId) -> Option<Transaction> {
        let known = self.unfinished.iter().find(|known| known.value.node == node)?;
        let key = layout::unfinished_removal(&node);
        Some(Transaction::new().if_modified_at(key.as_str(), known.revision).delete(key))
    }

    /// What it takes to come back after all members have lost power.
    pub(super) fn cold_start(&self, reachable: &BTreeSet<NodeId>) -> Option<ColdStart> {
        let voters = self.voters();
        let has_tpm = |node: &NodeId| {
            self.records.get(node).is_some_and(|record| record.value.tpm_usage == NodeTpmUsage::PresentAndUsed)
        };
        ColdStart::of(&Reported {
            voters: &voters,
            reachable,
            keys: &self.keys(),
            epoch: self.epoch(),
            two_confirmed: self.two_confirmed,
            has_tpm: voters.iter().all(has_tpm),
        })
    }

    /// Whether a node can become a member: others must be able to give it shares of their keys, if any do.
    pub(super) fn can_hold_shares(&self, node: &NodeId) -> bool {
        !self.needs_share_key(node) || self.has_share_key(node)
    }

    /// Whether a member on this node has to have a share key: its data are encrypted, or those of another member are split.
    pub(super) fn needs_share_key(&self, node: &NodeId) -> bool {
        let is_encrypted = self.records.get(node).is_some_and(|record| record.value.cluster_unlock_key.is_some());
        is_encrypted || self.voters().iter().any(|voter| self.keeping(voter).splits())
    }

    fn has_share_key(&self, node: &NodeId) -> bool {
        self.enrolments.get(node).is_some_and(|known| !known.value.share_key.is_empty())
    }

    /// Whether the list says something that is not so any more, of members that are still the same.
    fn is_list_stale(&self) -> bool {
        let Some(list) = self.list.as_ref().map(|list| list.value.list()) else { return false };
        let lacks_key = |member: &MemberEntry| member.share_key.is_none() && self.has_share_key(&member.node_id);
        list.is_two_confirmed() != self.two_confirmed || list.members().iter().any(lacks_key)
    }

    /// The epoch of the list; absent in a cluster that has none yet.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.list.as_ref().map(|list| list.value.list().epoch())
    }

    /// The epoch of the next list.
    pub(super) fn next_epoch(&self) -> Epoch {
        self.list.as_ref().map_or(Epoch::FIRST, |list| list.value.list().epoch().next())
    }

    /// The recoveries that the cluster has gone through, which each list carries on.
    pub(super) fn recoveries(&self) -> Vec<Recovery> {
        self.list.as_ref().map(|list| list.value.list().recoveries().to_vec()).unwrap_or_default()
    }
}

/// What these nodes have reported. One that has reported nothing has an entry as well.
pub(super) async fn enrolments(
    state: &LeaderState,
    nodes: &BTreeSet<NodeId>,
) -> Result<BTreeMap<NodeId, Versioned<NodeEnrolment>>, StateError> {
    let mut found = Vec::new();
    let nodes: Vec<&NodeId> = nodes.iter().collect();
    for some in nodes.chunks(READ_AT_ONCE) {
        let reads = some.iter().fold(Transaction::new(), |reads, node| reads.get(layout::enrolment(node)));
        found.extend(state.read(reads).await?.found);
    }
    let read = nodes.into_iter().zip(found).map(|(node, pairs)| {
        let enrolment = match pairs.into_iter().next() {
            Some(pair) => {
                Versioned { value: pair.value, revision: pair.mod_revision }.decode(&layout::enrolment(node))?
            }
            None => Versioned { value: NodeEnrolment::default(), revision: 0 },
        };
        Ok((*node, enrolment))
    });
    read.collect()
}

/// Reads what is noted of the removal of a node, which lies under this key.
pub(crate) fn read_unfinished(
    key: &str,
    found: Versioned<WireUnfinished>,
) -> Result<Versioned<Unfinished>, StateError> {
    let WireUnfinished { node_id, epoch, shares_needed, helpers } = found.value;
    let node: NodeId = node_id.parse().map_err(|_| StateError::damaged(key, "it names no node"))?;
    let epoch = epoch.ok_or_else(|| StateError::damaged(key, "it has no epoch"))?.into();
    if layout::unfinished_removal(&node) != key {
        return Err(StateError::damaged(key, "its node is not that of its key"));
    }
    let shares_needed = usize::try_from(shares_needed).unwrap_or(usize::MAX);
    let helpers = helpers.iter().filter_map(|helper| helper.parse().ok()).collect();
    Ok(Versioned { value: Unfinished { node, epoch, shares_needed, helpers }, revision: found.revision })
}

fn read_intent(found: Versioned<MembershipIntent>) -> Result<Versioned<OpenIntent>, StateError> {
    let key = layout::membership_intent();
    let message = found.value;
    let public_key =
        PublicKey::try_from(&message.public_key[..]).map_err(|source| StateError::damaged(&*key, source))?;
    let node = NodeId::of(&public_key);
    let operation = match WireOperation::try_from(message.operation) {
        Ok(WireOperation::Add) => Operation::Add(node),
        Ok(WireOperation::Remove) => Operation::Remove(node),
        Ok(WireOperation::Invalid) | Err(_) => {
            return Err(StateError::damaged(key, "its operation is unknown to this version of Polis"));
        }
    };
    if message.node_id != node.to_string() {
        return Err(StateError::damaged(key, "its node is not that of its key"));
    }
    Ok(Versioned { value: OpenIntent { operation, public_key, message }, revision: found.revision })
}

fn read_queued(key: &str, found: Versioned<QueuedJoin>) -> Result<Versioned<Queued>, StateError> {
    let message = found.value;
    let public_key = PublicKey::try_from(&message.public_key[..]).map_err(|source| StateError::damaged(key, source))?;
    let node = NodeId::of(&public_key);
    if layout::queued_join(&node) != key || message.node_id != node.to_string() {
        return Err(StateError::damaged(key, "its node is not that of its key"));
    }
    Ok(Versioned { value: Queued { node, public_key, message }, revision: found.revision })
}
