//! Makes the state of a cluster that of one member alone, after the others are gone for good (`polis cluster recover`).
//!
//! It works on data that no node runs on, which only this process reaches; what is left when it is cut off is thrown away. So
//! it need not be one transaction, though what nodes read together still is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use polis_consensus::{Namespaced, Transaction};
use polis_identity::NodeId;
use polis_proto::common::NodeRoles;
use polis_proto::curator_state::{self, NodeEnrolment};
use polis_unlock::{Epoch, InvalidMemberList, MemberList, Recovery, SignedMemberList};

use crate::state::Versioned;
use crate::{ClaimError, LeaderState, NodeRecord, Seen, State, StateError, claim, layout};

/// What the node itself has heard of the history of the members, which may be more than its data know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHistory {
    /// The highest epoch.
    pub highest: Epoch,
    /// The recoveries before the newest list that it has.
    pub recoveries: Vec<Recovery>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// Revision of the store before it.
    pub revision: i64,
    /// The nodes that were consensus members besides the one that is left. They have no such role any more.
    pub others: BTreeSet<NodeId>,
    /// The nodes besides the one that is left whose half of the key of their data the store has, each with the time of its last report
    /// that the store knows.
    pub with_keys: BTreeMap<NodeId, Option<SystemTime>>,
    /// The epoch of the new list of members: of a higher incarnation than any list before.
    pub epoch: Epoch,
    /// That list, as it is stored.
    pub signed_list: Vec<u8>,
}

/// It was not done.
#[derive(Debug, thiserror::Error)]
pub enum LeaveAloneError {
    /// The node is not in these data.
    #[error(
        "{0} is no node of the cluster whose data these are; they may be older than its registration, or of another cluster"
    )]
    NoSuchNode(NodeId),
    /// These are the data of another cluster.
    #[error("the data are those of the cluster {found}, and the node belongs to {expected}")]
    OtherCluster {
        /// The cluster of the data.
        found: String,
        /// The cluster of the node.
        expected: String,
    },
    /// The leadership could not be claimed.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The present list is damaged.
    #[error("the present list of members cannot be used")]
    List(#[from] InvalidMemberList),
    /// The state was not read or changed.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Makes `survivor` the only consensus member of the cluster with this id: the others lose that role and their certificates as
/// members, nothing of a change of members is left under way, and the signed list names the survivor alone, with a higher incarnation than
/// any before: `known` is what the node itself has heard of. The list carries a new token, by which this cluster is told from any other that is
/// recovered from the same one.
///
/// # Errors
///
/// When the data are not of that cluster, or cannot be read or changed.
pub async fn leave_alone(
    root: Namespaced,
    survivor: &NodeId,
    cluster: &str,
    known: Option<KnownHistory>,
) -> Result<LeftAlone, LeaveAloneError> {
    let state = State::new(root);
    let found = state.authority_certificate().await?.cluster_id().to_string();
    if found != cluster {
        return Err(LeaveAloneError::OtherCluster { found, expected: cluster.to_owned() });
    }
    let present = state.get(&layout::leader()).await?;
    let revision = state.read(Transaction::new().get(layout::epoch())).await?.revision;
    let seen = Seen { claim: present.map_or(0, |claim| claim.revision), alive: None };
    let (leader, _) = claim(&state, survivor, 0, seen).await?;
    let records = leader.nodes().await?;
    let own = records.iter().find(|record| record.value.id == *survivor);
    let own = own.ok_or(LeaveAloneError::NoSuchNode(*survivor))?;
    let others: Vec<_> =
        records.iter().filter(|record| record.value.id != *survivor && record.value.is_consensus_member()).collect();
    for other in &others {
        if let Some(change) = leader.revoke_peer(&other.value.id).await? {
            leader.transact("recover/revoke", change.add_to(Transaction::new())).await?;
        }
    }
    let (list, epoch) = list(&leader, own, known).await?;
    let mut transaction = Transaction::new()
        .put(layout::epoch(), list.encode())
        .delete(layout::membership_intent())
        .delete(layout::two_confirmed())
        .delete_all(layout::membership_queue())
        .delete_all(layout::unfinished_removals());
    for other in &others {
        let roles = NodeRoles { consensus_member: None, kubernetes_controller: None, ..other.value.roles.clone() };
        let changed = NodeRecord { roles, ..NodeRecord::clone(&other.value) };
        transaction = transaction.put(layout::node(&changed.id), changed.encode());
    }
    leader.transact("recover/alone", transaction).await?;
    let others = others.iter().map(|other| other.value.id).collect();
    let with_keys = records.iter().map(|record| &record.value);
    let with_keys = with_keys.filter(|record| record.id != *survivor && record.cluster_unlock_key.is_some());
    let with_keys = with_keys.map(|record| (record.id, last_report(record))).collect();
    Ok(LeftAlone { revision, others, with_keys, epoch, signed_list: list.encode() })
}

/// When the node last reported, as far as the record knows.
fn last_report(record: &NodeRecord) -> Option<SystemTime> {
    record.status.as_ref()?.timestamp.and_then(|timestamp| timestamp.try_into().ok())
}

/// The list of the survivor alone.
async fn list(
    leader: &LeaderState,
    own: &Versioned<Arc<NodeRecord>>,
    known: Option<KnownHistory>,
) -> Result<(SignedMemberList, Epoch), LeaveAloneError> {
    let authority = leader.authority().await?;
    let enrolment = leader.get_message::<NodeEnrolment>(&layout::enrolment(&own.value.id)).await?;
    let enrolment = enrolment.map(|found| found.value).unwrap_or_default();
    let present = match leader.get_message::<curator_state::SignedMemberList>(&layout::epoch()).await? {
        Some(found) => {
            let list = SignedMemberList::verify(found.value, authority.certificate())?;
            Some(KnownHistory { highest: list.list().epoch(), recoveries: list.list().recoveries().to_vec() })
        }
        None => None,
    };
    let newest = present.into_iter().chain(known).max_by_key(|history| history.highest);
    let KnownHistory { highest, mut recoveries } =
        newest.unwrap_or_else(|| KnownHistory { highest: Epoch::FIRST, recoveries: Vec::new() });
    let highest = highest.incarnation;
    let epoch = Epoch { incarnation: highest.saturating_add(1), epoch: 1 };
    let entry = own.value.member_entry(&enrolment);
    let cluster = authority.certificate().cluster_id();
    recoveries.push(Recovery { incarnation: epoch.incarnation, token: rand::random() });
    Ok((MemberList::new(cluster, epoch, vec![entry]).with_recoveries(recoveries).sign(&authority), epoch))
}
