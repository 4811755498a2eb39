//! The transactions of a change: what each step writes, all of it or nothing.
//!
//! Each is conditioned on the revisions that were read, so that two requests never answer to the same state; the fence of the
//! leadership is added to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polis_consensus::{Member, Transaction, peer_url};
use polis_identity::{NodeId, PublicKey};
use polis_proto::api::node::Health;
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::ConsensusMember;
use polis_proto::common::node_roles::consensus_member::Peer;
use polis_proto::curator_state::membership_intent::Operation as WireOperation;
use polis_proto::curator_state::{MembershipIntent, NodeEnrolment, QueuedJoin, SplitReport, UnfinishedRemoval};
use polis_unlock::{Epoch, MemberEntry, MemberList, Standing};
use prost::Message as _;
use tokio::time::Instant;

use super::Members;
use super::margin::Operation;
use super::observation::{Observation, enrolments};
use super::plan::GaveUp;
use super::splits::{Keeping, Unfinished, least_shares, shares_needed_during};
use crate::state::Versioned;
use crate::{LeaderState, NodeRecord, StateError, layout};

impl Members {
    /// Opens a change: intent, list of the members before and after together. Who is to be removed leaves the queue.
    pub(super) async fn begin(
        &self,
        state: &LeaderState,
        observation: &Observation,
        operation: Operation,
        public_key: &PublicKey,
        reason: &str,
    ) -> Result<Transaction, StateError> {
        let node = NodeId::of(public_key);
        let mut holders = settled(observation.voters());
        match operation {
            Operation::Add(_) => holders.insert(node, Standing::Joins),
            // One that has no vote is in no list.
            Operation::Remove(_) => {
                holders.get_mut(&node).map(|standing| std::mem::replace(standing, Standing::Leaves))
            }
        };
        let transaction = self.list(state, observation, &holders).await?;
        let transaction = match &observation.intent {
            Some(open) => transaction.if_modified_at(layout::membership_intent(), open.revision),
            None => transaction.if_absent(layout::membership_intent()),
        };
        let intent = intent(observation, operation, public_key, reason);
        let transaction = match operation {
            // It stays in the queue until it is a member, with what is known of earlier attempts; and nobody takes it out
            // meanwhile.
            Operation::Add(_) => match observation.queue.iter().find(|queued| queued.value.node == node) {
                Some(queued) => transaction.if_modified_at(layout::queued_join(&node), queued.revision),
                None => transaction,
            },
            Operation::Remove(_) => dequeue(transaction, observation, node),
        };
        Ok(transaction.put(layout::membership_intent(), intent.encode_to_vec()))
    }

    /// Ends the change that is under way: the list is that of the members as they are.
    pub(super) async fn end(&self, state: &LeaderState, observation: &Observation) -> Result<Transaction, StateError> {
        let transaction = self.list(state, observation, &settled(observation.voters())).await?;
        Ok(match &observation.intent {
            Some(open) => transaction
                .if_modified_at(layout::membership_intent(), open.revision)
                .delete(layout::membership_intent()),
            None => transaction,
        })
    }

    /// The end of a removal: the roles go with it, and the member's certificate is revoked.
    pub(super) async fn end_removal(
        &self,
        state: &LeaderState,
        observation: &Observation,
        node: NodeId,
    ) -> Result<Transaction, StateError> {
        let transaction = self.end(state, observation).await?;
        let transaction = match state.revoke_peer(&node).await? {
            Some(change) => change.add_to(transaction),
            None => transaction,
        };
        Ok(match observation.records.get(&node) {
            Some(record) => without_role(transaction, record),
            None => transaction,
        })
    }

    /// Gives up an addition: it becomes a removal of the learner, and the node goes to the end of the queue.
    pub(super) fn give_up(&self, observation: &Observation, node: NodeId, reason: GaveUp) -> Transaction {
        let Some(open) = &observation.intent else { return Transaction::new() };
        let text = reason.text(&self.0.budgets);
        let removal = intent(observation, Operation::Remove(node), &open.value.public_key, &text);
        // The list stays as it is: it has everybody, as that of a removal must. So does its epoch.
        let removal = MembershipIntent { epoch: open.value.message.epoch, ..removal };
        let transaction = Transaction::new()
            .if_modified_at(layout::membership_intent(), open.revision)
            .put(layout::membership_intent(), removal.encode_to_vec());
        let Some(record) = observation.records.get(&node) else { return transaction };
        let transaction = without_role(transaction, record);
        let known = observation.queue.iter().find(|queued| queued.value.node == node);
        let attempts = known.map_or(0, |queued| queued.value.message.attempts).saturating_add(1);
        let kubernetes_controller = known.is_some_and(|queued| queued.value.message.kubernetes_controller);
        let queued = QueuedJoin {
            position: next_position(observation),
            attempts,
            last_failure: text,
            kubernetes_controller,
            ..queued(&open.value.public_key)
        };
        transaction.put(layout::queued_join(&node), queued.encode_to_vec())
    }

    /// Gives the node its role, with its credentials and the members as they are.
    pub(super) async fn grant_role(
        &self,
        state: &LeaderState,
        observation: &Observation,
        record: &Versioned<Arc<NodeRecord>>,
    ) -> Result<Transaction, StateError> {
        let certificate = state.issue_peer_certificate("membership/certificate", &record.value.public_key).await?;
        let (authority, revocations) = tokio::try_join!(state.peer_authority_certificate(), state.peer_revocations())?;
        let name = |member: &Member| {
            observation.node_of(member).map_or_else(|| format!("member-{:016x}", member.id), |node| node.to_string())
        };
        let peer = |member: &Member| Some(Peer { name: name(member), url: peer_url(member.address?) });
        let role = ConsensusMember {
            ca_certificate: authority.der().to_vec(),
            peer_certificate: certificate.der().to_vec(),
            initial_crl: revocations.value.der().to_vec(),
            peers: observation.members.iter().filter_map(peer).collect(),
        };
        let changed = NodeRecord {
            roles: NodeRoles { consensus_member: Some(role), ..record.value.roles.clone() },
            ..NodeRecord::clone(&record.value)
        };
        let key = layout::node(&changed.id);
        Ok(Transaction::new().if_modified_at(key.as_str(), record.revision).put(key.as_str(), changed.encode()))
    }

    /// The list of these members, with the next epoch. Nodes that are no more are not in it.
    ///
    /// Who was in the last list and is not in this one is noted, until enough members have heard of it.
    pub(super) async fn list(
        &self,
        state: &LeaderState,
        observation: &Observation,
        holders: &BTreeMap<NodeId, Standing>,
    ) -> Result<Transaction, StateError> {
        let gone: BTreeSet<NodeId> =
            observation.listed().into_iter().filter(|node| !holders.contains_key(node)).collect();
        let nodes: BTreeSet<NodeId> = holders.keys().chain(&gone).copied().collect();
        let (enrolments, authority) = tokio::try_join!(enrolments(state, &nodes), state.authority())?;
        let entry = |(node, standing): (&NodeId, &Standing)| {
            let record = observation.records.get(node)?;
            Some(MemberEntry { standing: *standing, ..record.value.member_entry(&enrolments[node].value) })
        };
        let entries = holders.iter().filter_map(entry).collect();
        let epoch = observation.next_epoch();
        let list = MemberList::new(authority.certificate().cluster_id(), epoch, entries)
            .with_two_confirmed(observation.two_confirmed)
            .with_recoveries(observation.recoveries())
            .sign(&authority);
        let transaction = match &observation.list {
            Some(known) => Transaction::new().if_modified_at(layout::epoch(), known.revision),
            None => Transaction::new().if_absent(layout::epoch()),
        };
        let now = Instant::now();
        let is_open = |node: &NodeId| {
            let record = observation.records.get(node);
            let health = record.map(|record| self.0.heartbeats.health(record.value.state, node, now));
            health == Some(Health::Healthy)
        };
        let transaction = gone.iter().fold(transaction, |transaction, node| {
            forget_split(transaction, observation, holders, (node, is_open(node)), &enrolments[node], epoch)
        });
        // Whoever is a member again is not to be forgotten.
        let is_back = |known: &&Versioned<Unfinished>| holders.contains_key(&known.value.node);
        let transaction = observation.unfinished.iter().filter(is_back).fold(transaction, |transaction, known| {
            let key = layout::unfinished_removal(&known.value.node);
            transaction.if_modified_at(key.as_str(), known.revision).delete(key)
        });
        Ok(transaction.put(layout::epoch(), list.encode()))
    }
}

/// Members of a cluster without a change.
pub(super) fn settled(voters: BTreeSet<NodeId>) -> BTreeMap<NodeId, Standing> {
    voters.into_iter().map(|node| (node, Standing::Stays)).collect()
}

/// Notes of a node that is not in the list of this epoch any more what shares of its key others could still give it, and that what it
/// has reported counts no more.
fn forget_split(
    transaction: Transaction,
    observation: &Observation,
    present: &BTreeMap<NodeId, Standing>,
    (node, is_open): (&NodeId, bool),
    enrolment: &Versioned<NodeEnrolment>,
    epoch: Epoch,
) -> Transaction {
    let mut helpers: BTreeSet<NodeId> = observation.listed().into_iter().chain(present.keys().copied()).collect();
    let shares_needed = match (observation.keeping_by(node, &enrolment.value), observation.records.contains_key(node)) {
        (Keeping::Splits(split), _) => {
            let before = observation.list.as_ref().map(|list| list.value.list());
            let count = |voters: Option<usize>| voters.unwrap_or_default();
            let during = shares_needed_during(
                count(before.map(|list| list.voters_before().count())),
                count(before.map(|list| list.voters_after().count())),
                before.is_some_and(MemberList::is_two_confirmed),
            );
            let epoch = before.map_or(Epoch::FIRST, MemberList::epoch);
            let before = Epoch { epoch: epoch.epoch.saturating_sub(1), ..epoch };
            // Whom it has given shares since its report, nobody here knows.
            let is_known = split.as_ref().is_some_and(|split| split.list >= before);
            helpers.extend(split.iter().flat_map(|split| &split.holders));
            helpers.extend(observation.records.keys().filter(|_| !is_known));
            split.map_or(1, |split| least_shares(&split, before, during, is_open))
        }
        // Nothing is known of it any more.
        (Keeping::Alone, false) if observation.keys().values().any(Keeping::splits) => 1,
        (Keeping::Alone | Keeping::CannotSplit, _) => return transaction,
    };
    let unfinished = UnfinishedRemoval {
        node_id: node.to_string(),
        epoch: Some(epoch.into()),
        shares_needed: u32::try_from(shares_needed).unwrap_or(u32::MAX),
        helpers: helpers.iter().filter(|helper| *helper != node).map(NodeId::to_string).collect(),
    };
    let transaction = transaction.put(layout::unfinished_removal(node), unfinished.encode_to_vec());
    if enrolment.value.split.is_none() {
        return transaction;
    }
    let forgotten = NodeEnrolment { split: Some(SplitReport::default()), ..enrolment.value.clone() };
    let key = layout::enrolment(node);
    transaction.if_modified_at(key.as_str(), enrolment.revision).put(key, forgotten.encode_to_vec())
}

/// Takes the node out of the queue, if it is there.
pub(super) fn dequeue(transaction: Transaction, observation: &Observation, node: NodeId) -> Transaction {
    match observation.queue.iter().find(|queued| queued.value.node == node) {
        Some(queued) => {
            transaction.if_modified_at(layout::queued_join(&node), queued.revision).delete(layout::queued_join(&node))
        }
        None => transaction,
    }
}

/// The node is a member: takes it out of the queue, and gives it what it was to have together with its vote.
pub(super) fn arrived(transaction: Transaction, observation: &Observation, node: NodeId) -> Transaction {
    let transaction = dequeue(transaction, observation, node);
    let queued = observation.queue.iter().find(|queued| queued.value.node == node);
    let was_controller = queued.is_some_and(|queued| queued.value.message.kubernetes_controller);
    match observation.records.get(&node) {
        Some(record) if was_controller && record.value.is_consensus_member() => {
            let kubernetes_controller = Some(record.value.roles.kubernetes_controller.unwrap_or_default());
            let roles = NodeRoles { kubernetes_controller, ..record.value.roles.clone() };
            let changed = NodeRecord { roles, ..NodeRecord::clone(&record.value) };
            let key = layout::node(&node);
            transaction.if_modified_at(key.as_str(), record.revision).put(key.as_str(), changed.encode())
        }
        Some(_) | None => transaction,
    }
}

/// Takes the role of a consensus member from a node, and that of a Kubernetes controller, which needs it (metropolis.md G.6).
pub(super) fn without_role(transaction: Transaction, record: &Versioned<Arc<NodeRecord>>) -> Transaction {
    let roles = &record.value.roles;
    if roles.consensus_member.is_none() && roles.kubernetes_controller.is_none() {
        return transaction;
    }
    let roles = NodeRoles { consensus_member: None, kubernetes_controller: None, ..roles.clone() };
    let changed = NodeRecord { roles, ..NodeRecord::clone(&record.value) };
    let key = layout::node(&changed.id);
    transaction.if_modified_at(key.as_str(), record.revision).put(key.as_str(), changed.encode())
}

/// A node in the queue that has not been tried.
pub(super) fn queued(public_key: &PublicKey) -> QueuedJoin {
    QueuedJoin {
        node_id: NodeId::of(public_key).to_string(),
        public_key: public_key.as_bytes().to_vec(),
        ..QueuedJoin::default()
    }
}

/// The place behind the last.
pub(super) fn next_position(observation: &Observation) -> u64 {
    observation.queue.last().map_or(1, |last| last.value.message.position.saturating_add(1))
}

fn intent(observation: &Observation, operation: Operation, public_key: &PublicKey, reason: &str) -> MembershipIntent {
    let (wire, node) = match operation {
        Operation::Add(node) => (WireOperation::Add, node),
        Operation::Remove(node) => (WireOperation::Remove, node),
    };
    MembershipIntent {
        operation: wire.into(),
        node_id: node.to_string(),
        public_key: public_key.as_bytes().to_vec(),
        epoch: Some(observation.next_epoch().into()),
        reason: reason.to_owned(),
    }
}
