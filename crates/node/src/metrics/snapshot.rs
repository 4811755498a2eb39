//! All that is measured on a node at one moment, as plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_consensus::Status as MemberStatus;
use polis_control::Status;
use polis_identity::NodeId;
use polis_logtree::{DistinguishedName, Usage};
use polis_supervisor::NodeReport;

use super::process::ProcessSample;

/// All that is measured on a node at one moment.
pub(crate) struct Snapshot {
    pub(crate) status: Status,
    pub(crate) runnables: Vec<NodeReport>,
    /// How often each runnable has died since the process began.
    pub(crate) deaths: BTreeMap<DistinguishedName, u64>,
    /// How long ago the leader answered a heartbeat last; absent before the first.
    pub(crate) contact_age: Option<Duration>,
    /// How old the newest snapshot of the cluster's state is that this node keeps; absent when it has none.
    pub(crate) snapshot_age: Option<Duration>,
    /// The consensus member of this node, if it runs one.
    pub(crate) member: Option<MemberStatus>,
    /// What this node knows as the cluster's leader; absent while it does not lead.
    pub(crate) leading: Option<LeadingSample>,
    pub(crate) log: Usage,
    pub(crate) process: ProcessSample,
}

/// What only the leader knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeadingSample {
    /// How long ago each node was heard of; absent when it was not since this node leads.
    pub(crate) heartbeat_ages: BTreeMap<NodeId, Option<Duration>>,
    /// The consensus members with a vote, and how many of them answer; absent while that is not known.
    pub(crate) quorum: Option<QuorumSample>,
    /// Nodes that wait for their turn to become consensus members, with how often an attempt was given up.
    pub(crate) joins: BTreeMap<NodeId, u32>,
}

/// How the consensus members with a vote stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuorumSample {
    /// Members with a vote.
    pub(crate) voters: usize,
    /// Those of them that answer.
    pub(crate) answering: usize,
}

impl QuorumSample {
    /// How many more may fail until the cluster can write no more; negative when it cannot now.
    pub(crate) fn margin(self) -> i64 {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        number(self.answering) - (number(self.voters) / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_what_may_still_fail() {
        for (voters, answering, margin) in
            [(1, 1, 0), (2, 2, 0), (3, 3, 1), (3, 2, 0), (3, 1, -1), (5, 5, 2), (5, 3, 0)]
        {
            assert_eq!(QuorumSample { voters, answering }.margin(), margin, "{answering} of {voters}");
        }
    }
}
