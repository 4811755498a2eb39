//! What a cluster is doing, in the form that is shown: `polis cluster status` and `polis consensus members`.

use polis_proto::cluster::{GetStatusResponse, get_status_response as wire_status};
use polis_proto::curator_state::DecommissionPhase;
use serde::Serialize;

use super::keys_document::{ColdStartDocument, EpochDocument, SplitDocument, UnfinishedRemovalDocument};
use crate::view::{Fields, Paint, Table, count};
use crate::{duration, wire};

/// What the cluster is doing. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StatusDocument {
    pub(crate) cluster_id: String,
    pub(crate) leader: String,
    pub(crate) raft_term: u64,
    /// Absent only where the leader tells none: a cluster has a list of its members from its birth on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<EpochDocument>,
    pub(crate) quorum: u32,
    /// How many more voters may fail; negative when the quorum is lost.
    pub(crate) margin: i32,
    pub(crate) members: Vec<MemberDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<ChangeDocument>,
    pub(crate) queue: Vec<QueuedDocument>,
    pub(crate) decommissioning: Vec<DecommissionDocument>,
    pub(crate) alarms: Vec<String>,
    /// What it takes to come back after all members have lost power; absent if no member splits its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cold_start: Option<ColdStartDocument>,
    /// Removed members that others could still help to open their data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unfinished_removals: Vec<UnfinishedRemovalDocument>,
    /// Public half of the recovery key, hexadecimal; absent while none is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_public_key: Option<String>,
    /// Processes that show themselves with the key of a node that another process is, and are refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) other_processes: Vec<OtherProcessDocument>,
}

/// A member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct MemberDocument {
    /// Absent for a member that no node is known for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_id: Option<String>,
    pub(crate) member_id: String,
    pub(crate) learner: bool,
    pub(crate) leads_raft: bool,
    pub(crate) reachable: bool,
    /// Entries of raft by which it is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lag: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_version: Option<String>,
    /// Absent if it does not split its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) split: Option<SplitDocument>,
    /// Of the newest member list that it has made durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) list_epoch: Option<EpochDocument>,
    /// Whether it has sealed its keys to the recovery key; absent while there is no such key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_blob: Option<bool>,
}

/// The change of members that is under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ChangeDocument {
    pub(crate) operation: String,
    pub(crate) node_id: String,
    pub(crate) waiting_for: String,
    /// Seconds.
    pub(crate) running_for: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct QueuedDocument {
    pub(crate) node_id: String,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
}

/// A node on its way out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DecommissionDocument {
    pub(crate) node_id: String,
    /// `REQUESTED`, `CLEANING_UP` or `DECOMMISSIONED`.
    pub(crate) phase: String,
}

/// A second process that shows itself as a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct OtherProcessDocument {
    pub(crate) node_id: String,
    /// Where it is, as the leader sees it.
    pub(crate) address: String,
}

impl From<GetStatusResponse> for StatusDocument {
    fn from(status: GetStatusResponse) -> Self {
        let other_processes = status.heartbeats.iter().filter(|node| !node.other_process.is_empty());
        let other_processes = other_processes
            .map(|node| OtherProcessDocument { node_id: node.node_id.clone(), address: node.other_process.clone() });
        let other_processes = other_processes.collect();
        let recovery_public_key =
            (!status.recovery_public_key.is_empty()).then(|| hex::encode(&status.recovery_public_key));
        let member = |member: wire_status::Member| MemberDocument {
            recovery_blob: recovery_public_key.as_ref().map(|_| member.recovery_blob),
            ..MemberDocument::from(member)
        };
        let decommissioning = status.heartbeats.iter().filter(|node| node.decommission != 0);
        Self {
            cluster_id: status.cluster_id,
            leader: status.leader_node_id,
            raft_term: status.raft_term,
            epoch: status.epoch.map(Into::into),
            quorum: status.quorum,
            margin: status.margin,
            members: status.members.into_iter().map(member).collect(),
            change: status.change.map(|change| ChangeDocument {
                running_for: change.running_for.as_ref().map_or(0.0, wire::seconds),
                operation: change.operation,
                node_id: change.node_id,
                waiting_for: change.waiting_for,
            }),
            queue: status
                .queue
                .into_iter()
                .map(|queued| QueuedDocument {
                    node_id: queued.node_id,
                    reason: queued.reason,
                    attempts: queued.attempts,
                })
                .collect(),
            decommissioning: decommissioning
                .map(|node| DecommissionDocument {
                    node_id: node.node_id.clone(),
                    phase: wire::name::<DecommissionPhase>(
                        node.decommission,
                        DecommissionPhase::as_str_name,
                        "DECOMMISSION_PHASE_",
                    ),
                })
                .collect(),
            alarms: status.alarms,
            cold_start: status.cold_start.map(Into::into),
            unfinished_removals: status.unfinished_removals.into_iter().map(Into::into).collect(),
            recovery_public_key,
            other_processes,
        }
    }
}

impl From<wire_status::Member> for MemberDocument {
    fn from(member: wire_status::Member) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            node_id: some(member.node_id),
            member_id: member.member_id,
            learner: member.learner,
            leads_raft: member.leads_raft,
            reachable: member.reachable,
            lag: member.lag,
            database_bytes: member.database_bytes,
            etcd_version: some(member.etcd_version),
            split: member.split.map(Into::into),
            list_epoch: member.list_epoch.map(Into::into),
            recovery_blob: None,
        }
    }
}

impl MemberDocument {
    /// The name under which people know it.
    pub(crate) fn name(&self) -> String {
        self.node_id.clone().unwrap_or_else(|| format!("etcd member {}", self.member_id))
    }
}

impl StatusDocument {
    pub(crate) fn voters(&self) -> impl Iterator<Item = &MemberDocument> {
        self.members.iter().filter(|member| !member.learner)
    }

    /// Voters that answer.
    pub(crate) fn reachable(&self) -> usize {
        self.voters().filter(|member| member.reachable).count()
    }

    /// How far the quorum is from being lost, in a sentence without a full stop.
    pub(crate) fn quorum_text(&self) -> String {
        format!("{}: {}", self.answers_text(), self.consequence_text())
    }

    /// How many answer and how many must: the first part of that sentence.
    pub(crate) fn answers_text(&self) -> String {
        let (voters, reachable) = (self.voters().count(), self.reachable());
        if voters == 1 && reachable == 1 {
            "the only member with a vote answers".to_owned()
        } else {
            format!("{reachable} of {} with a vote answer, {} must", count(voters, "member"), self.quorum)
        }
    }

    /// What that means: the second part.
    pub(crate) fn consequence_text(&self) -> String {
        match self.margin {
            ..0 => "the quorum is lost, nothing can be changed".to_owned(),
            0 if self.voters().count() == 1 => "nothing can be changed while it is away".to_owned(),
            0 => "one more failure stops all changes".to_owned(),
            1 => "one more may fail".to_owned(),
            more => format!("{more} more may fail"),
        }
    }

    pub(crate) fn render(&self, wide: bool, paint: Paint) -> String {
        let mut fields = Fields::default();
        fields.add("Cluster", self.cluster_id.clone());
        fields.add("Leader", format!("{} (term {})", self.leader, self.raft_term));
        fields.add_some(
            "Epoch",
            self.epoch.as_ref().map(|epoch| format!("{} (incarnation {})", epoch.epoch, epoch.incarnation)),
        );
        let quorum = self.quorum_text();
        fields.add("Quorum", if self.margin < 0 { paint.red(&quorum) } else { quorum });
        fields.add_some("Cold start", self.cold_start.as_ref().map(|cold_start| cold_start.text(paint)));
        fields.add(
            "Change",
            match &self.change {
                Some(change) => change.text(),
                None => "none under way".to_owned(),
            },
        );
        if self.queue.is_empty() {
            fields.add("Queue", "nobody waits to become a member");
        } else {
            let lines = self.queue.iter().enumerate().map(|(index, queued)| queued.text(index + 1));
            fields.add("Queue", lines.collect::<Vec<_>>().join("\n"));
        }
        if !self.decommissioning.is_empty() {
            let lines = self.decommissioning.iter().map(|node| format!("{}: {}", node.node_id, node.phase));
            fields.add("Leaving", lines.collect::<Vec<_>>().join("\n"));
        }
        if !self.unfinished_removals.is_empty() {
            let lines = self.unfinished_removals.iter().map(|removal| removal.text.clone());
            fields.add("Removals", paint.yellow(&lines.collect::<Vec<_>>().join("\n")));
        }
        if !self.alarms.is_empty() {
            fields.add("Alarms", paint.red(&self.alarms.join(", ")));
        }
        format!("{}\n{}", fields.render(paint), self.render_members(wide, paint))
    }

    pub(crate) fn render_members(&self, wide: bool, paint: Paint) -> String {
        let mut heading = vec!["NODE ID", "MEMBER", "VOTE", "RAFT", "ANSWERS", "BEHIND"];
        let shows_splits = self.members.iter().any(|member| member.split.is_some());
        if shows_splits {
            heading.extend(["SPLIT", "LIST"]);
        }
        if wide {
            heading.extend(["DATABASE", "ETCD"]);
        }
        let mut table = Table::new(heading);
        for member in &self.members {
            let mut cells = vec![
                member.node_id.clone().unwrap_or_default(),
                member.member_id.clone(),
                if member.learner { paint.yellow("learner") } else { "yes".into() },
                if member.leads_raft { "leads" } else { "follows" }.into(),
                if member.reachable { paint.green("yes") } else { paint.red("no") },
                member.lag.map(|lag| lag.to_string()).unwrap_or_default(),
            ];
            if shows_splits {
                cells.push(member.split.as_ref().map(|split| split.cell(paint)).unwrap_or_default());
                cells.push(member.list_epoch.as_ref().map(|epoch| epoch.epoch.to_string()).unwrap_or_default());
            }
            if wide {
                cells.push(member.database_bytes.map(bytes).unwrap_or_default());
                cells.push(member.etcd_version.clone().unwrap_or_default());
            }
            table.row(cells);
        }
        table.render(paint)
    }
}

impl ChangeDocument {
    /// What is done, since when, and what it waits for.
    pub(crate) fn text(&self) -> String {
        let since = std::time::Duration::try_from_secs_f64(self.running_for).unwrap_or_default();
        // What is waited for is a sentence, as the leader writes it.
        let what = if self.waiting_for.is_empty() { "it is under way" } else { &self.waiting_for };
        format!("{} {} since {}: {what}", self.operation, self.node_id, duration::show(since))
    }
}

impl QueuedDocument {
    fn text(&self, place: usize) -> String {
        let attempts = if self.attempts == 0 { String::new() } else { format!(" (tried {} times)", self.attempts) };
        format!("{place}. {}: {}{attempts}", self.node_id, self.reason)
    }
}

/// A size as one word.
fn bytes(number: u64) -> String {
    match number {
        0..1_024 => format!("{number}B"),
        1_024..1_048_576 => format!("{}KiB", number / 1_024),
        1_048_576.. => format!("{}MiB", number / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(digit: char) -> String {
        format!("metropolis-{}", digit.to_string().repeat(32))
    }

    /// Three members with a vote, of which the last does not answer.
    fn example() -> StatusDocument {
        let member = |digit: char| MemberDocument {
            node_id: Some(node(digit)),
            member_id: format!("{digit}f"),
            leads_raft: digit == 'a',
            reachable: digit != 'c',
            lag: (digit != 'c').then_some(0),
            database_bytes: (digit != 'c').then_some(81_920),
            etcd_version: (digit != 'c').then(|| "3.4.23".into()),
            ..MemberDocument::default()
        };
        StatusDocument {
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            leader: node('a'),
            raft_term: 7,
            epoch: Some(EpochDocument { incarnation: 1, epoch: 3 }),
            quorum: 2,
            margin: 0,
            members: ['a', 'b', 'c'].map(member).into(),
            ..StatusDocument::default()
        }
    }

    #[test]
    fn a_cluster_with_a_member_that_is_away() {
        let mut status = example();
        status.queue.push(QueuedDocument { node_id: node('d'), reason: "its turn comes next".into(), attempts: 2 });
        status.alarms.push("NOSPACE".into());
        status.change = Some(ChangeDocument {
            operation: "add".into(),
            node_id: node('e'),
            waiting_for: "its consensus member catches up".into(),
            running_for: 65.0,
        });
        status.decommissioning.push(DecommissionDocument { node_id: node('f'), phase: "CLEANING_UP".into() });
        assert_eq!(
            status.render(false, Paint::plain()),
            "\
Cluster  0123456789abcdef0123456789abcdef
Leader   metropolis-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa (term 7)
Epoch    3 (incarnation 1)
Quorum   2 of 3 members with a vote answer, 2 must: one more failure stops all changes
Change   add metropolis-eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee since 1 min 5 s: its consensus member catches up
Queue    1. metropolis-dddddddddddddddddddddddddddddddd: its turn comes next (tried 2 times)
Leaving  metropolis-ffffffffffffffffffffffffffffffff: CLEANING_UP
Alarms   NOSPACE

NODE ID                                      MEMBER  VOTE  RAFT     ANSWERS  BEHIND
metropolis-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  af      yes   leads    yes      0
metropolis-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb  bf      yes   follows  yes      0
metropolis-cccccccccccccccccccccccccccccccc  cf      yes   follows  no       -
"
        );
        assert!(status.render(true, Paint::plain()).contains("DATABASE  ETCD\n"));
        assert!(status.render_members(true, Paint::plain()).contains("yes      0       80KiB     3.4.23\n"));
    }

    #[test]
    fn how_the_keys_are_split() {
        let mut wire = GetStatusResponse {
            cluster_id: "c".into(),
            leader_node_id: "l".into(),
            quorum: 2,
            margin: 1,
            recovery_public_key: vec![7; 32],
            cold_start: Some(wire_status::ColdStart {
                summary: "3 members, any 2 open".into(),
                members_needed: 3,
                members_needed_settled: 2,
                behind: vec![node('b')],
                two_confirmed: false,
                remark: format!("until {} has been back once, a cold start needs 3 of 3", node('b')),
            }),
            unfinished_removals: vec![wire_status::UnfinishedRemoval {
                node_id: node('d'),
                text: "the removal is not finished".into(),
                ..Default::default()
            }],
            ..GetStatusResponse::default()
        };
        let split = |epoch, holders: &[char]| polis_proto::curator_state::SplitReport {
            epoch: Some(polis_proto::curator_state::Epoch { incarnation: 1, epoch }),
            shares_needed: 1,
            holders: holders.iter().map(|holder| node(*holder)).collect(),
            verified: true,
            list_epoch: None,
        };
        for (digit, split) in [('a', Some(split(5, &['b', 'c']))), ('b', Some(split(3, &['a']))), ('c', None)] {
            wire.members.push(wire_status::Member {
                node_id: node(digit),
                member_id: format!("{digit}f"),
                reachable: true,
                split,
                list_epoch: Some(polis_proto::curator_state::Epoch { incarnation: 1, epoch: 5 }),
                recovery_blob: digit == 'a',
                ..Default::default()
            });
        }
        let status = StatusDocument::from(wire);
        let text = status.render(false, Paint::plain());
        let expected = format!("3 members, any 2 open\n            until {} has been back once", node('b'));
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("Removals    the removal is not finished\n"), "{text}");
        assert!(text.contains("BEHIND  SPLIT            LIST\n"), "{text}");
        assert!(
            text.contains("-       1 of 2, epoch 5  5\n") && text.contains("-       -                5\n"),
            "{text}"
        );
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["cold_start"]["members_needed"], 3);
        assert_eq!(json["unfinished_removals"][0]["node_id"], node('d'));
        assert_eq!(json["members"][0]["split"]["shares_needed"], 1);
        assert_eq!(json["members"][0]["list_epoch"]["epoch"], 5);
        assert_eq!(json["members"][1]["recovery_blob"], false);
        assert_eq!(json["recovery_public_key"], "07".repeat(32));
    }

    #[test]
    fn the_margin_in_words() {
        let check = |voters: usize, reachable: usize, margin, expect: &str| {
            let members = (0..voters)
                .map(|index| MemberDocument { reachable: index < reachable, ..MemberDocument::default() })
                .collect();
            let quorum = u32::try_from(voters / 2 + 1).unwrap();
            let status = StatusDocument { members, quorum, margin, ..StatusDocument::default() };
            assert_eq!(status.quorum_text(), expect);
        };
        check(1, 1, 0, "the only member with a vote answers: nothing can be changed while it is away");
        check(3, 3, 1, "3 of 3 members with a vote answer, 2 must: one more may fail");
        check(5, 5, 2, "5 of 5 members with a vote answer, 3 must: 2 more may fail");
        check(5, 2, -1, "2 of 5 members with a vote answer, 3 must: the quorum is lost, nothing can be changed");
    }

    #[test]
    fn the_wire_form_is_read_as_it_is() {
        let wire = GetStatusResponse {
            cluster_id: "c".into(),
            leader_node_id: "l".into(),
            quorum: 1,
            heartbeats: vec![
                wire_status::NodeHeartbeat { node_id: "x".into(), ..Default::default() },
                wire_status::NodeHeartbeat { node_id: "y".into(), decommission: 2, ..Default::default() },
                wire_status::NodeHeartbeat {
                    node_id: "z".into(),
                    other_process: "192.0.2.1".into(),
                    ..Default::default()
                },
            ],
            members: vec![wire_status::Member { member_id: "1".into(), ..Default::default() }],
            ..GetStatusResponse::default()
        };
        let json = serde_json::to_value(StatusDocument::from(wire)).unwrap();
        assert_eq!(json["decommissioning"], serde_json::json!([{"node_id": "y", "phase": "CLEANING_UP"}]));
        assert_eq!(json["other_processes"], serde_json::json!([{"node_id": "z", "address": "192.0.2.1"}]));
        assert_eq!(json["members"][0]["member_id"], "1");
        assert!(json["members"][0].get("node_id").is_none() && json.get("epoch").is_none());
    }
}
