//! The transactions of a change: what each step writes, all of it or nothing.
//!
//! Each is conditioned on the revisions that were read, so that two requests never answer to the same state; the fence of the
//! leadership is added to all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use polis_consensus::{Member, Transaction, peer_url};
use polis_identity::{NodeId, PublicKey};
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::ConsensusMember;
use polis_proto::common::node_roles::consensus_member::Peer;
use polis_proto::curator_state::membership_intent::Operation as WireOperation;
use polis_proto::curator_state::{MembershipIntent, NodeEnrolment, QueuedJoin};
use prost::Message as _;

use super::Members;
use super::margin::Operation;
use super::observation::Observation;
use super::plan::GaveUp;
use crate::state::Versioned;
use crate::{LeaderState, MemberEntry, MemberList, NodeRecord, StateError, layout};

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
        let mut holders = observation.voters();
        if matches!(operation, Operation::Add(_)) {
            holders.insert(node);
        }
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
        let transaction = self.list(state, observation, &observation.voters()).await?;
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
        let queued = QueuedJoin {
            position: next_position(observation),
            attempts,
            last_failure: text,
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
    pub(super) async fn list(
        &self,
        state: &LeaderState,
        observation: &Observation,
        holders: &BTreeSet<NodeId>,
    ) -> Result<Transaction, StateError> {
        let records: Vec<_> = holders.iter().filter_map(|node| observation.records.get(node)).collect();
        let reads =
            records.iter().fold(Transaction::new(), |reads, record| reads.get(layout::enrolment(&record.value.id)));
        let (found, authority) = tokio::try_join!(state.read(reads), state.authority())?;
        let mut entries = Vec::new();
        for (record, pairs) in records.iter().zip(found.found) {
            let key = layout::enrolment(&record.value.id);
            let enrolment = match pairs.into_iter().next() {
                Some(pair) => {
                    Versioned { value: pair.value, revision: pair.mod_revision }.decode::<NodeEnrolment>(&key)?.value
                }
                None => NodeEnrolment::default(),
            };
            entries.push(MemberEntry::of(&record.value, &enrolment));
        }
        let cluster = authority.certificate().cluster_id();
        let list = MemberList::new(cluster, observation.next_epoch(), entries).sign(&authority);
        let transaction = match &observation.list {
            Some(known) => Transaction::new().if_modified_at(layout::epoch(), known.revision),
            None => Transaction::new().if_absent(layout::epoch()),
        };
        Ok(transaction.put(layout::epoch(), list.encode()))
    }
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
