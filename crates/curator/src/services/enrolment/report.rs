//! ReportNode: a node tells what only it knows of itself.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::common::NodeState;
use polis_proto::curator_state::{DecommissionPhase, NodeEnrolment};
use polis_proto::enrolment::{ReportNodeRequest, ReportNodeResponse};
use prost::Message as _;
use tonic::Status;

use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::{Epoch, LeaderState, NodeRecord, layout};

/// Length of an X25519 public key, in bytes.
const SHARE_KEY_LENGTH: usize = 32;

/// Takes over what the calling node reports.
pub(super) async fn report(
    leader: &LeaderState,
    id: &NodeId,
    request: &ReportNodeRequest,
) -> Result<ReportNodeResponse, Status> {
    repeat(|| try_report(leader, id, request)).await?;
    Ok(ReportNodeResponse {})
}

async fn try_report(leader: &LeaderState, id: &NodeId, request: &ReportNodeRequest) -> Result<(), Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let key = layout::enrolment(id);
    let known = leader.get_message::<NodeEnrolment>(&key).await?;
    let before = known.as_ref().map(|known| known.value.clone()).unwrap_or_default();
    let after = merge(&before, request)?;
    if after == before && known.is_some() {
        return Ok(());
    }
    let transaction = match &known {
        Some(known) => Transaction::new().if_modified_at(key.as_str(), known.revision),
        None => Transaction::new().if_absent(key.as_str()),
    };
    let mut transaction = transaction.if_modified_at(layout::node(id), found.revision).put(key, after.encode_to_vec());
    // On the wire a node is UP until it has erased what it had.
    if after.decommission() == DecommissionPhase::Decommissioned && found.value.state != NodeState::Decommissioned {
        let record = NodeRecord { state: NodeState::Decommissioned, ..found.value };
        transaction = transaction.put(layout::node(id), record.encode());
    }
    leader.transact("curator/node/report", transaction).await?;
    Ok(())
}

/// What is known after a report. Epochs and phases only go on.
fn merge(before: &NodeEnrolment, report: &ReportNodeRequest) -> Result<NodeEnrolment, Status> {
    let mut after = before.clone();
    match report.share_key.len() {
        0 => {}
        SHARE_KEY_LENGTH => after.share_key.clone_from(&report.share_key),
        length => {
            return Err(Status::invalid_argument(format!(
                "share_key has {length} bytes, and an X25519 public key has {SHARE_KEY_LENGTH}"
            )));
        }
    }
    let epoch = |epoch: Option<polis_proto::curator_state::Epoch>| epoch.map(Epoch::from);
    if epoch(report.members_epoch) > epoch(before.members_epoch) {
        after.members_epoch = report.members_epoch;
    }
    let phase = DecommissionPhase::try_from(report.decommission)
        .map_err(|_| Status::invalid_argument(format!("decommission has the unknown value {}", report.decommission)))?;
    match (before.decommission(), phase) {
        (_, DecommissionPhase::None) => {}
        (_, DecommissionPhase::Requested) => {
            return Err(Status::invalid_argument("only an operator can request that a node is decommissioned"));
        }
        (DecommissionPhase::None, DecommissionPhase::CleaningUp | DecommissionPhase::Decommissioned) => {
            return Err(Status::failed_precondition("nobody has asked this node to be decommissioned"));
        }
        (
            DecommissionPhase::Requested | DecommissionPhase::CleaningUp | DecommissionPhase::Decommissioned,
            DecommissionPhase::CleaningUp | DecommissionPhase::Decommissioned,
        ) => {
            if phase > before.decommission() {
                after.set_decommission(phase);
            }
        }
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn phases_go_on_only_once_they_were_asked_for() {
        use DecommissionPhase::{CleaningUp, Decommissioned, None as Nothing, Requested};
        for (before, reported, expected) in [
            (Nothing, Nothing, Ok(Nothing)),
            (Nothing, Requested, Err(Code::InvalidArgument)),
            (Nothing, CleaningUp, Err(Code::FailedPrecondition)),
            (Nothing, Decommissioned, Err(Code::FailedPrecondition)),
            (Requested, Nothing, Ok(Requested)),
            (Requested, CleaningUp, Ok(CleaningUp)),
            (Requested, Decommissioned, Ok(Decommissioned)),
            (CleaningUp, CleaningUp, Ok(CleaningUp)),
            (CleaningUp, Decommissioned, Ok(Decommissioned)),
            (CleaningUp, Requested, Err(Code::InvalidArgument)),
            (Decommissioned, CleaningUp, Ok(Decommissioned)),
            (Decommissioned, Nothing, Ok(Decommissioned)),
        ] {
            let known = NodeEnrolment { decommission: before.into(), ..NodeEnrolment::default() };
            let report = ReportNodeRequest { decommission: reported.into(), ..ReportNodeRequest::default() };
            let found = merge(&known, &report).map(|after| after.decommission()).map_err(|status| status.code());
            assert_eq!(found, expected, "{before:?}, {reported:?}");
        }
        let report = ReportNodeRequest { decommission: 9, ..ReportNodeRequest::default() };
        assert_eq!(merge(&NodeEnrolment::default(), &report).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn what_is_not_reported_stays() {
        let epoch = |incarnation, epoch| Some(polis_proto::curator_state::Epoch { incarnation, epoch });
        let known = NodeEnrolment {
            share_key: vec![1; 32],
            commit_hash: vec![2; 32],
            members_epoch: epoch(1, 5),
            ..NodeEnrolment::default()
        };
        let report = |share_key: usize, members_epoch| {
            let report = ReportNodeRequest { share_key: vec![3; share_key], members_epoch, ..Default::default() };
            merge(&known, &report).map_err(|status| status.code())
        };
        assert_eq!(report(0, None), Ok(known.clone()));
        assert_eq!(report(0, epoch(1, 4)), Ok(known.clone()));
        assert_eq!(report(0, epoch(1, 6)), Ok(NodeEnrolment { members_epoch: epoch(1, 6), ..known.clone() }));
        assert_eq!(report(0, epoch(2, 1)), Ok(NodeEnrolment { members_epoch: epoch(2, 1), ..known.clone() }));
        assert_eq!(report(32, None), Ok(NodeEnrolment { share_key: vec![3; 32], ..known.clone() }));
        assert_eq!(report(31, None), Err(Code::InvalidArgument));
    }
}
