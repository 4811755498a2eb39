//! What a cluster of an earlier version lacks, made by its first leader of this one.

use polis_consensus::Transaction;
use polis_proto::curator_state::NodeEnrolment;
use polis_unlock::{Epoch, MemberList};

use crate::{LeaderState, StateError, layout};

/// Gives the cluster its first member list, if it has none: the first versions gave birth to clusters without one. Its members then
/// are the nodes that have the role.
pub(super) async fn complete(leader: &LeaderState) -> Result<(), StateError> {
    let authority = leader.authority().await?;
    let mut members = Vec::new();
    for record in leader.nodes().await?.into_iter().filter(|record| record.value.is_consensus_member()) {
        let enrolment = leader.get_message::<NodeEnrolment>(&layout::enrolment(&record.value.id)).await?;
        let enrolment = enrolment.map(|enrolment| enrolment.value).unwrap_or_default();
        members.push(record.value.member_entry(&enrolment));
    }
    let list = MemberList::new(authority.certificate().cluster_id(), Epoch::FIRST, members).sign(&authority);
    let transaction = Transaction::new().if_absent(layout::epoch()).put(layout::epoch(), list.encode());
    // A conflict: somebody else has made it meanwhile.
    if leader.attempt("curator/leadership/complete", transaction).await?.is_some() {
        tracing::info!("the cluster has got its first member list, of epoch {}", Epoch::FIRST);
    }
    Ok(())
}
