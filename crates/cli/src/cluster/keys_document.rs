//! How members keep the keys of their data, and what that means after a power failure, in the form that is shown.

use polis_proto::cluster::get_status_response as wire_status;
use polis_proto::curator_state::{Epoch, SplitReport};
use serde::Serialize;

use crate::view::Paint;

/// A point in the history of the members.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EpochDocument {
    pub(super) incarnation: u64,
    pub(super) epoch: u64,
}

/// How a member has split its cluster unlock key. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SplitDocument {
    /// Of the member list for which it was split; absent while it has not split its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<EpochDocument>,
    /// Shares that give the key; 0: it keeps a copy.
    shares_needed: u32,
    holders: Vec<String>,
    /// Whether it has got its key from shares.
    verified: bool,
    /// Of the newest member list to which the split fits; absent if it is that for which it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    list_epoch: Option<EpochDocument>,
}

/// What it takes to come back after all members have lost power. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ColdStartDocument {
    pub(crate) summary: String,
    /// Members of which any set opens; absent if not even all of them do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) members_needed: Option<u32>,
    pub(crate) members_needed_settled: u32,
    /// Members that have not split their keys to the present list, or have not tried it.
    pub(crate) behind: Vec<String>,
    pub(crate) two_confirmed: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) remark: String,
}

/// A removed member that others could still help to open its data. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct UnfinishedRemovalDocument {
    pub(crate) node_id: String,
    /// Of the first list without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<EpochDocument>,
    /// Members that have not heard of that list.
    pub(crate) lacking: Vec<String>,
    pub(crate) shares_needed: u32,
    pub(crate) text: String,
}

impl From<Epoch> for EpochDocument {
    fn from(epoch: Epoch) -> Self {
        Self { incarnation: epoch.incarnation, epoch: epoch.epoch }
    }
}

impl From<SplitReport> for SplitDocument {
    fn from(report: SplitReport) -> Self {
        Self {
            epoch: report.epoch.map(Into::into),
            shares_needed: report.shares_needed,
            holders: report.holders,
            verified: report.verified,
            list_epoch: report.list_epoch.map(Into::into),
        }
    }
}

impl From<wire_status::ColdStart> for ColdStartDocument {
    fn from(cold_start: wire_status::ColdStart) -> Self {
        Self {
            summary: cold_start.summary,
            members_needed: (cold_start.members_needed > 0).then_some(cold_start.members_needed),
            members_needed_settled: cold_start.members_needed_settled,
            behind: cold_start.behind,
            two_confirmed: cold_start.two_confirmed,
            remark: cold_start.remark,
        }
    }
}

impl From<wire_status::UnfinishedRemoval> for UnfinishedRemovalDocument {
    fn from(removal: wire_status::UnfinishedRemoval) -> Self {
        Self {
            node_id: removal.node_id,
            epoch: removal.epoch.map(Into::into),
            lacking: removal.lacking,
            shares_needed: removal.shares_needed,
            text: removal.text,
        }
    }
}

impl SplitDocument {
    /// In one cell of a table.
    pub(super) fn cell(&self, paint: Paint) -> String {
        let Some(epoch) = &self.epoch else { return paint.yellow("not yet") };
        let what = match self.shares_needed {
            0 => "local".to_owned(),
            shares => format!("{shares} of {}", self.holders.len()),
        };
        let text = format!("{what}, epoch {}", epoch.epoch);
        if self.verified || self.shares_needed == 0 { text } else { paint.yellow(&format!("{text}, not tried")) }
    }
}

impl ColdStartDocument {
    /// A few words, and on another line what is not as it should be.
    pub(super) fn text(&self, paint: Paint) -> String {
        if self.remark.is_empty() {
            self.summary.clone()
        } else {
            format!("{}\n{}", self.summary, paint.yellow(&self.remark))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(epoch: Option<u64>, shares_needed: u32, holders: usize, verified: bool) -> String {
        let report = SplitReport {
            epoch: epoch.map(|epoch| Epoch { incarnation: 1, epoch }),
            shares_needed,
            holders: vec!["x".into(); holders],
            verified,
            list_epoch: None,
        };
        SplitDocument::from(report).cell(Paint::plain())
    }

    #[test]
    fn a_split_in_a_cell() {
        assert_eq!(split(None, 0, 0, false), "not yet");
        assert_eq!(split(Some(1), 0, 0, false), "local, epoch 1");
        assert_eq!(split(Some(4), 2, 3, true), "2 of 3, epoch 4");
        assert_eq!(split(Some(5), 1, 2, false), "1 of 2, epoch 5, not tried");
    }

    #[test]
    fn that_not_even_all_come_back_is_no_number() {
        let wire = wire_status::ColdStart { summary: "s".into(), remark: "r".into(), ..Default::default() };
        let document = ColdStartDocument::from(wire);
        assert_eq!(document.text(Paint::plain()), "s\nr");
        assert!(serde_json::to_value(document).unwrap().get("members_needed").is_none());
    }
}
