//! ReportNode: a node tells what only it knows of itself.

use std::collections::BTreeSet;

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::common::NodeState;
use polis_proto::curator_state::{DecommissionPhase, MemberList, NodeEnrolment, SignedMemberList, SplitReport};
use polis_proto::enrolment::{ReportNodeRequest, ReportNodeResponse};
use polis_unlock::Epoch;
use prost::Message as _;
use tonic::Status;

use crate::membership::MAX_MEMBERS;
use crate::services::core::{Core, parse_id};
use crate::services::failure::{Failure, repeat};
use crate::{LeaderState, NodeRecord, StateError, layout};

/// Length of an X25519 public key, in bytes.
const SHARE_KEY_LENGTH: usize = 32;

/// Takes over what the calling node reports.
pub(super) async fn report(
    core: &Core,
    leader: &LeaderState,
    id: &NodeId,
    request: &ReportNodeRequest,
) -> Result<ReportNodeResponse, Status> {
    check_split(id, request.split.as_ref())?;
    if repeat(|| try_report(leader, id, request)).await? {
        // A change of members may wait for this.
        core.members.reported();
    }
    Ok(ReportNodeResponse {})
}

/// One attempt. Returns whether that is news.
async fn try_report(leader: &LeaderState, id: &NodeId, request: &ReportNodeRequest) -> Result<bool, Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let key = layout::enrolment(id);
    let known = leader.get_message::<NodeEnrolment>(&key).await?;
    let before = known.as_ref().map(|known| known.value.clone()).unwrap_or_default();
    let list = match &request.split {
        Some(SplitReport { epoch: Some(_), .. }) => Some(List::read(leader).await?),
        Some(SplitReport { epoch: None, .. }) | None => None,
    };
    let after = merge(&before, request, list.as_ref().and_then(|list| list.epoch_with(id)))?;
    if after == before && known.is_some() {
        return Ok(false);
    }
    let transaction = match &known {
        Some(known) => Transaction::new().if_modified_at(key.as_str(), known.revision),
        None => Transaction::new().if_absent(key.as_str()),
    };
    let mut transaction = transaction.put(key, after.encode_to_vec());
    // On the wire a node is UP until it has erased what it had.
    if after.decommission() == DecommissionPhase::Decommissioned && found.value.state != NodeState::Decommissioned {
        let record = NodeRecord { state: NodeState::Decommissioned, ..found.value };
        transaction =
            transaction.if_modified_at(layout::node(id), found.revision).put(layout::node(id), record.encode());
    } else {
        // What else is written to the record, its status for example, changes nothing here.
        transaction = transaction.if_present(layout::node(id));
    }
    if let Some(revision) = list.and_then(|list| list.revision) {
        transaction = transaction.if_modified_at(layout::epoch(), revision);
    }
    leader.transact("curator/node/report", transaction).await?;
    Ok(true)
}

/// The present member list, as far as a report needs it.
struct List {
    message: MemberList,
    revision: Option<i64>,
}

impl List {
    async fn read(leader: &LeaderState) -> Result<Self, StateError> {
        let key = layout::epoch();
        let Some(found) = leader.get_message::<SignedMemberList>(&key).await? else {
            return Ok(Self { message: MemberList::default(), revision: None });
        };
        let message = MemberList::decode(&found.value.list[..]).map_err(|source| StateError::damaged(key, source))?;
        Ok(Self { message, revision: Some(found.revision) })
    }

    /// Its epoch, if this node is in it.
    fn epoch_with(&self, id: &NodeId) -> Option<Epoch> {
        let id = id.to_string();
        let is_listed = self.message.members.iter().any(|member| member.node_id == id);
        self.message.epoch.filter(|_| is_listed).map(Epoch::from)
    }
}

/// Whether a report of a split can be true.
fn check_split(id: &NodeId, report: Option<&SplitReport>) -> Result<(), Status> {
    let Some(SplitReport { shares_needed, holders, epoch: _, verified: _, list_epoch: _ }) = report else {
        return Ok(());
    };
    let refused = |text: String| Err(Status::invalid_argument(format!("split {text}")));
    let mut known = BTreeSet::new();
    for holder in holders {
        let holder = parse_id("split.holders", holder)?;
        if holder == *id {
            return refused("names its owner as the holder of a share".into());
        }
        if !known.insert(holder) {
            return refused(format!("names {holder} twice"));
        }
    }
    // While one member joins, there is one more than may be members.
    if known.len() > MAX_MEMBERS {
        return refused(format!("names {} holders, and there are at most {MAX_MEMBERS} members", known.len()));
    }
    if usize::try_from(*shares_needed).is_ok_and(|needed| needed <= known.len()) {
        Ok(())
    } else {
        refused(format!("needs {shares_needed} shares, and has {}", known.len()))
    }
}

/// What is known after a report. Epochs and phases only go on. `listed` is the epoch of the present member list, if the node is in
/// it.
fn merge(before: &NodeEnrolment, report: &ReportNodeRequest, listed: Option<Epoch>) -> Result<NodeEnrolment, Status> {
    let mut after = before.clone();
    if let Some(split) = &report.split {
        after.split = Some(merge_split(before.split.as_ref(), split, listed));
    }
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

/// What is known of a split after a report of it. What a node has split that is no member counts for nothing, and neither does what
/// it has split for a list that this cluster does not know.
fn merge_split(before: Option<&SplitReport>, report: &SplitReport, listed: Option<Epoch>) -> SplitReport {
    let epochs = |split: &SplitReport| {
        let epoch = split.epoch.map(Epoch::from)?;
        Some((epoch, split.list_epoch.map_or(epoch, |list| epoch.max(list.into()))))
    };
    let counts =
        epochs(report).is_some_and(|(_, list)| Some(list) <= listed) && epochs(report) >= before.and_then(epochs);
    let kept = || before.cloned().unwrap_or_default();
    if counts { report.clone() } else { kept() }
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
            let found = merge(&known, &report, None).map(|after| after.decommission()).map_err(|status| status.code());
            assert_eq!(found, expected, "{before:?}, {reported:?}");
        }
        let report = ReportNodeRequest { decommission: 9, ..ReportNodeRequest::default() };
        assert_eq!(merge(&NodeEnrolment::default(), &report, None).unwrap_err().code(), Code::InvalidArgument);
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
            merge(&known, &report, None).map_err(|status| status.code())
        };
        assert_eq!(report(0, None), Ok(known.clone()));
        assert_eq!(report(0, epoch(1, 4)), Ok(known.clone()));
        assert_eq!(report(0, epoch(1, 6)), Ok(NodeEnrolment { members_epoch: epoch(1, 6), ..known.clone() }));
        assert_eq!(report(0, epoch(2, 1)), Ok(NodeEnrolment { members_epoch: epoch(2, 1), ..known.clone() }));
        assert_eq!(report(32, None), Ok(NodeEnrolment { share_key: vec![3; 32], ..known.clone() }));
        assert_eq!(report(31, None), Err(Code::InvalidArgument));
    }

    fn id(number: u8) -> NodeId {
        format!("metropolis-{number:032x}").parse().unwrap()
    }

    fn split(epoch: Option<u64>, shares_needed: u32, holders: &[u8]) -> SplitReport {
        SplitReport {
            epoch: epoch.map(|epoch| polis_proto::curator_state::Epoch { incarnation: 1, epoch }),
            shares_needed,
            holders: holders.iter().map(|holder| id(*holder).to_string()).collect(),
            verified: true,
            list_epoch: None,
        }
    }

    #[test]
    fn a_split_counts_for_members_and_does_not_go_back() {
        let listed = |epoch| Some(Epoch { incarnation: 1, epoch });
        let old = split(Some(4), 1, &[2, 3]);
        let new = split(Some(5), 2, &[2, 3, 4]);
        let able = SplitReport::default();
        let fits = |list| SplitReport { list_epoch: split(Some(list), 0, &[]).epoch, ..old.clone() };
        let untried = SplitReport { verified: false, ..new.clone() };
        for (name, before, report, listed, expected) in [
            ("it can", None, &able, None, &able),
            ("it can, and has", Some(&old), &able, listed(5), &old),
            ("the first", None, &old, listed(5), &old),
            ("a newer one", Some(&old), &new, listed(5), &new),
            ("the same epoch, tried", Some(&untried), &new, listed(5), &new),
            ("an older one", Some(&new), &old, listed(5), &new),
            ("a newer list that asks for the same", Some(&old), &fits(5), listed(5), &fits(5)),
            ("an older list", Some(&fits(5)), &old, listed(5), &fits(5)),
            ("a list that is not known here, for the same file", Some(&old), &fits(6), listed(5), &old),
            ("no member", Some(&able), &new, None, &able),
            ("a list that is not known here", Some(&old), &new, listed(4), &old),
        ] {
            let known = NodeEnrolment { split: before.cloned(), ..NodeEnrolment::default() };
            let request = ReportNodeRequest { split: Some(report.clone()), ..ReportNodeRequest::default() };
            let after = merge(&known, &request, listed).unwrap();
            assert_eq!(after.split.as_ref(), Some(expected), "{name}");
            let nothing = merge(&known, &ReportNodeRequest::default(), listed).unwrap();
            assert_eq!(nothing.split.as_ref(), before, "{name}");
        }
    }

    #[test]
    fn a_report_that_cannot_be_true_is_refused() {
        for (report, expected) in [
            (split(None, 0, &[]), Code::Ok),
            (split(Some(1), 0, &[]), Code::Ok),
            (split(Some(1), 2, &[2, 3]), Code::Ok),
            (split(Some(1), 3, &[2, 3]), Code::InvalidArgument),
            (split(Some(1), 1, &[1, 2]), Code::InvalidArgument),
            (split(Some(1), 1, &[2, 2]), Code::InvalidArgument),
            (split(Some(1), 1, &[2, 3, 4, 5, 6, 7, 8, 9, 10]), Code::Ok),
            (split(Some(1), 1, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), Code::InvalidArgument),
            (SplitReport { holders: vec!["nobody".into()], ..split(Some(1), 1, &[]) }, Code::InvalidArgument),
        ] {
            let found = check_split(&id(1), Some(&report)).map_or_else(|status| status.code(), |()| Code::Ok);
            assert_eq!(found, expected, "{report:?}");
        }
    }
}
