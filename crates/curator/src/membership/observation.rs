//! What the leader reads before it decides: etcd's members first, then the state, at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::sync::Arc;

use polis_consensus::{Member, MembershipError, Transaction};
use polis_identity::{NodeId, PeerAddress, PublicKey};
use polis_proto::api::node::Health;
use polis_proto::common::NodeState;
use polis_proto::curator_state::membership_intent::Operation as WireOperation;
use polis_proto::curator_state::{MembershipIntent, QueuedJoin};
use tokio::time::Instant;

use super::Members;
use super::margin::Operation;
use super::plan::{Attempt, Intent, MemberFacts, NodeFacts, Waiter, World};
use crate::state::Versioned;
use crate::{Epoch, LeaderState, NodeRecord, SignedMemberList, StateError, layout};

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
            .get(layout::epoch());
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
        let keys = records
            .values()
            .map(|record| record.value.public_key)
            .chain(intent.iter().map(|intent| intent.value.public_key))
            .chain(queue.iter().map(|queued| queued.value.public_key));
        let nodes_by_address = keys.map(|key| (PeerAddress::of(&key).ip(), NodeId::of(&key))).collect();
        Ok(Observation { members, records, intent, queue, list, nodes_by_address, revision: committed.revision })
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
            Waiter { node, is_ready: is_healthy && !resting(&node) }
        };
        World {
            leader: Some(*state.node_id()),
            members: observation.members.iter().map(|member| observation.facts(member)).collect(),
            queue: observation.queue.iter().map(waiter).collect(),
            nodes,
            intent: observation.intent.as_ref().map(|intent| Intent { operation: intent.value.operation }),
            listed: observation.listed(),
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

    /// The epoch of the next list.
    pub(super) fn next_epoch(&self) -> Epoch {
        self.list.as_ref().map_or(Epoch::FIRST, |list| list.value.list().epoch().next())
    }
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
