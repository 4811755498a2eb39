//! What the observations mean. Nothing here asks anybody.

use std::collections::BTreeMap;

use super::finding::{Finding, Level};
use super::observations::{EndpointAnswer, Observations};
use crate::cluster::{MemberDocument, StatusDocument};
use crate::fleet::NodeDocument;
use crate::view::count;

/// Seconds that a learner has to catch up before it counts as stuck. Snapshots of ordinary size take seconds, and the leader
/// gives up by itself later than this.
const LEARNER_PATIENCE: f64 = 60.0;

/// Seconds after which a change of members that is still under way deserves to be looked at.
const CHANGE_PATIENCE: f64 = 60.0;

/// Entries of raft by which a voter may be behind. A member that was away for a moment is behind by this much in a busy cluster;
/// one that is behind by more may need a snapshot, and is no help for the quorum until it has it.
const LAG_PATIENCE: u64 = 5_000;

/// All findings. `options` are those that every command to paste needs.
pub(super) fn judge(observations: &Observations, options: &str) -> Vec<Finding> {
    let judge = Judge { observations, options };
    let mut findings = Vec::new();
    judge.endpoints(&mut findings);
    judge.leader(&mut findings);
    judge.members(&mut findings);
    judge.changes(&mut findings);
    judge.cold_start(&mut findings);
    judge.nodes(&mut findings);
    judge.leaving(&mut findings);
    judge.other_processes(&mut findings);
    judge.versions(&mut findings);
    judge.snapshots(&mut findings);
    judge.conditions(&mut findings);
    findings
}

/// Judges the cluster here, and its nodes in [`super::judge_nodes`].
pub(super) struct Judge<'a> {
    pub(super) observations: &'a Observations,
    options: &'a str,
}

impl Judge<'_> {
    pub(super) fn status(&self) -> Option<&StatusDocument> {
        self.observations.cluster.status.as_ref().ok()
    }

    pub(super) fn known_nodes(&self) -> &[NodeDocument] {
        self.observations.cluster.nodes.as_deref().unwrap_or_default()
    }

    /// What it means that this node does not do its part.
    pub(super) fn quorum_without(&self, node_id: &str) -> String {
        match self.status() {
            None => "not known, as no leader answers".to_owned(),
            Some(status) if status.voters().any(|member| member.node_id.as_deref() == Some(node_id)) => {
                status.consequence_text()
            }
            Some(_) => "none, it has no vote".to_owned(),
        }
    }

    pub(super) fn command(&self, command: &str) -> String {
        format!("polis {command}{}", self.options)
    }

    fn endpoints(&self, findings: &mut Vec<Finding>) {
        for endpoint in &self.observations.endpoints {
            let address = endpoint.address;
            findings.push(match &endpoint.answer {
                Ok(EndpointAnswer { node_id: Some(node_id), .. }) => {
                    Finding::new(Level::Ok, "endpoint", format!("answers at {address} and is of this cluster")).node(node_id)
                }
                Ok(EndpointAnswer { node_id: None, .. }) => {
                    Finding::new(Level::Ok, "endpoint", format!("{address} answers and is of this cluster"))
                }
                Err(cause) => {
                    let ip = address.ip().to_string();
                    let node = self.known_nodes().iter().find(|node| node.address.as_deref() == Some(&*ip));
                    let finding = Finding::new(Level::Error, "endpoint", format!("{address} cannot be asked"))
                        .cause(cause.clone())
                        .next(format!(
                            "look at the machine: polis node status --root DIR there; and check that {ip} is the address of a node of this cluster"
                        ));
                    match node {
                        Some(node) => finding.node(&node.node_id).quorum(self.quorum_without(&node.node_id)),
                        None => finding.quorum(match self.status() {
                            Some(status) => status.consequence_text(),
                            None => "not known, as no leader answers".to_owned(),
                        }),
                    }
                }
            });
        }
    }

    fn leader(&self, findings: &mut Vec<Finding>) {
        let answers = self.observations.endpoints.iter().filter_map(|endpoint| endpoint.answer.as_ref().ok());
        let named: BTreeMap<&str, usize> =
            answers.filter_map(|answer| answer.leader.as_deref().ok()).fold(BTreeMap::new(), |mut named, leader| {
                *named.entry(leader).or_default() += 1;
                named
            });
        if named.len() > 1 {
            let words = named.iter().map(|(leader, number)| format!("{} named {leader}", count(*number, "endpoint")));
            findings.push(
                Finding::new(Level::Warning, "leader", "the endpoints do not agree on who leads")
                    .cause(words.collect::<Vec<_>>().join("; "))
                    .quorum("none by itself: only one of them can change anything")
                    .next(format!(
                        "passes within seconds after an election; look again: {}",
                        self.command("cluster health")
                    )),
            );
        }
        match (self.status(), &self.observations.cluster.nodes, &self.observations.cluster.status) {
            (Some(status), _, _) => findings.push(
                Finding::new(Level::Ok, "leader", format!("leads (term {})", status.raft_term)).node(&status.leader),
            ),
            (None, Ok(_), Err(cause)) => findings.push(
                Finding::new(Level::Error, "leader", "the leader does not say how the members are")
                    .cause(cause.clone())
                    .quorum("not known")
                    .next(self.command("consensus members")),
            ),
            (None, Err(cause), _) => findings.push(
                Finding::new(Level::Error, "leader", "nobody answers for the cluster as its leader")
                    .cause(cause.clone())
                    .quorum(
                        "either it is lost, or this machine reaches no node that has it; without a leader nothing can be \
                         changed, and nodes that run go on as they are",
                    )
                    .next(
                        "start nodes that are down until more than half of the consensus members run, or name other nodes \
                         with --endpoints",
                    ),
            ),
            (None, Ok(_), Ok(_)) => {}
        }
        if let (Ok(_), Err(cause)) = (&self.observations.cluster.status, &self.observations.cluster.nodes) {
            findings.push(
                Finding::new(Level::Error, "nodes", "the leader does not list its nodes")
                    .cause(cause.clone())
                    .quorum("none by itself")
                    .next(self.command("node list")),
            );
        }
    }

    fn members(&self, findings: &mut Vec<Finding>) {
        let Some(status) = self.status() else { return };
        let voters = status.voters().count();
        let level = match status.margin {
            ..0 => Level::Error,
            0 if voters > 2 => Level::Error,
            0 if voters == 2 => Level::Warning,
            0 => Level::Notice,
            1.. => Level::Ok,
        };
        // The numbers stand here; all others only say what they mean.
        let finding = |text: String| Finding::new(level, "quorum", text);
        let silent =
            || status.voters().filter(|member| !member.reachable).map(MemberDocument::name).collect::<Vec<_>>();
        findings.push(match level {
            Level::Error => finding(status.answers_text())
                .cause(format!("no answer of {}", silent().join(", ")))
                .quorum(status.consequence_text())
                .next("bring the members back that do not answer; one that is dead for good: take its role away and add another"),
            Level::Warning | Level::Notice => finding(status.quorum_text())
                .quorum(format!("{} cannot lose any; three survive the loss of one", count(voters, "member")))
                .next(self.command("node add role ConsensusMember ID")),
            Level::Ok => finding(status.quorum_text()),
        });
        for member in status.voters() {
            let name = member.name();
            if !member.reachable {
                findings.push(
                    Finding::new(Level::Error, "member", "its consensus member does not answer")
                        .node(&name)
                        .cause("the leader asked it just now")
                        .quorum(status.consequence_text())
                        .next(format!(
                            "start it again; if it is dead for good: {}",
                            self.command(&format!("node remove role ConsensusMember {name}"))
                        )),
                );
            } else if let Some(lag) = member.lag.filter(|lag| *lag > LAG_PATIENCE) {
                findings.push(
                    Finding::new(Level::Warning, "member", format!("its consensus member is {lag} entries behind"))
                        .node(&name)
                        .quorum("it votes, but could not lead before it has caught up")
                        .next(format!("look at its disk and network: {}", self.command(&format!("node logs {name}")))),
                );
            }
        }
        for alarm in &status.alarms {
            let finding = Finding::new(Level::Error, "alarm", format!("etcd has raised the alarm {alarm}"));
            findings.push(if alarm.contains("NOSPACE") {
                finding
                    .cause("the database has reached its quota, or a disk is full")
                    .quorum("it stands, but nothing new can be written")
                    .next("make room on the disks of the members; the alarm is cleared by itself once there is")
            } else {
                finding
                    .quorum("a member whose data are damaged must not be counted on")
                    .next(self.command("consensus members -o wide"))
            });
        }
    }

    fn changes(&self, findings: &mut Vec<Finding>) {
        let Some(status) = self.status() else { return };
        for learner in status.members.iter().filter(|member| member.learner) {
            let name = learner.name();
            let change = status.change.as_ref().filter(|change| change.node_id == name);
            let stuck = change.is_none_or(|change| change.running_for > LEARNER_PATIENCE);
            let cause = match change {
                Some(change) => change.text(),
                None => "no change of members is under way for it".to_owned(),
            };
            let (level, what) =
                if stuck { (Level::Error, "is stuck as a learner") } else { (Level::Notice, "is learning") };
            let finding = Finding::new(level, "learner", what)
                .node(&name)
                .cause(cause)
                .quorum("none: it has no vote yet; but no other node can join meanwhile");
            findings.push(if stuck {
                finding.next(format!(
                    "look at it: {}; the cluster gives up by itself, or: {}",
                    self.command(&format!("node logs {name}")),
                    self.command(&format!("node remove role ConsensusMember {name}"))
                ))
            } else {
                finding
            });
        }
        if let Some(change) = &status.change {
            let level = if change.running_for > CHANGE_PATIENCE { Level::Warning } else { Level::Notice };
            findings.push(
                Finding::new(level, "change", format!("a change of members is under way: {}", change.operation))
                    .node(&change.node_id)
                    .cause(change.text())
                    .quorum(status.consequence_text())
                    .next(self.command("cluster status")),
            );
        }
        for queued in &status.queue {
            let finding = if queued.attempts == 0 {
                Finding::new(Level::Notice, "queue", "waits to become a consensus member")
            } else {
                let times = count(usize::try_from(queued.attempts).unwrap_or(usize::MAX), "attempt");
                Finding::new(Level::Error, "queue", format!("has not become a consensus member in {times}"))
                    .next(self.command(&format!("node logs {}", queued.node_id)))
            };
            findings
                .push(finding.node(&queued.node_id).cause(queued.reason.clone()).quorum("none: it has no vote yet"));
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_control::Status;

    use super::super::observations::{ClusterObservation, EndpointObservation, NodeObservation};
    use super::*;
    use crate::cluster::{
        ChangeDocument, ColdStartDocument, DecommissionDocument, OtherProcessDocument, QueuedDocument,
        UnfinishedRemovalDocument,
    };
    use crate::fake::node_status;

    fn id(digit: char) -> String {
        format!("metropolis-{}", digit.to_string().repeat(32))
    }

    /// Three nodes, all well.
    fn well() -> Observations {
        let digits = ['a', 'b', 'c'];
        let node = |digit: char| NodeDocument {
            node_id: id(digit),
            state: "UP".into(),
            health: "HEALTHY".into(),
            address: Some(format!("127.1.0.{}", u32::from(digit))),
            roles: vec!["ConsensusMember"],
            version: Some("0.1.0".into()),
            ..NodeDocument::default()
        };
        let member = |digit: char| MemberDocument {
            node_id: Some(id(digit)),
            leads_raft: digit == 'a',
            reachable: true,
            lag: Some(0),
            ..MemberDocument::default()
        };
        let answer = |digit: char| EndpointObservation {
            address: format!("127.1.0.{}:7835", u32::from(digit)).parse().unwrap(),
            answer: Ok(EndpointAnswer { node_id: Some(id(digit)), leader: Ok(id('a')) }),
        };
        Observations {
            at: jiff::Timestamp::from_second(10_000).unwrap(),
            endpoints: digits.map(answer).into(),
            cluster: ClusterObservation {
                nodes: Ok(digits.map(node).into()),
                status: Ok(StatusDocument {
                    leader: id('a'),
                    quorum: 2,
                    margin: 1,
                    members: digits.map(member).into(),
                    ..StatusDocument::default()
                }),
            },
            nodes: digits
                .map(|digit| NodeObservation { node_id: id(digit), status: Ok(node_status(&id(digit))) })
                .into(),
        }
    }

    #[test]
    fn the_age_of_the_newest_snapshot_is_told() {
        let mut observations = well();
        assert!(judge(&observations, "").iter().all(|finding| finding.check != "snapshots"));
        for (node, seconds) in observations.nodes.iter_mut().zip([2_800, 6_400]) {
            let Ok(status) = &mut node.status else { unreachable!("all is well") };
            let newest = jiff::Timestamp::from_second(seconds).unwrap();
            status.snapshots = Some(polis_control::SnapshotsStatus { newest, revision: 7, kept: 1, tried: true });
        }
        let findings = judge(&observations, "");
        let finding = findings.iter().find(|finding| finding.check == "snapshots").unwrap();
        assert!(finding.what.contains("2 member") && finding.what.contains("60m"), "{finding:?}");
    }

    /// Level, check and node of all that is not in order.
    fn found(observations: &Observations) -> Vec<(Level, &'static str, String)> {
        judge(observations, " --config D")
            .into_iter()
            .filter(|finding| finding.level != Level::Ok)
            .map(|finding| {
                // Whatever is not in order says what it means and what to do.
                assert!(finding.quorum.is_some(), "{finding:?}");
                assert!(finding.next.is_some() || finding.level == Level::Notice, "{finding:?}");
                (finding.level, finding.check, finding.node_id.unwrap_or_default())
            })
            .collect()
    }

    fn check(
        change: impl FnOnce(&mut StatusDocument, &mut Vec<NodeDocument>),
        expect: &[(Level, &'static str, String)],
    ) {
        let mut observations = well();
        let ClusterObservation { nodes: Ok(nodes), status: Ok(status) } = &mut observations.cluster else {
            unreachable!("all is well")
        };
        change(status, nodes);
        assert_eq!(found(&observations), expect);
    }

    #[test]
    fn nothing_is_found_where_all_is_well() {
        assert_eq!(found(&well()), []);
        let checks: Vec<&str> = judge(&well(), "").iter().map(|finding| finding.check).collect();
        assert_eq!(
            checks,
            ["endpoint", "endpoint", "endpoint", "leader", "quorum", "heartbeat", "versions", "condition"]
        );
    }

    #[test]
    fn what_a_power_failure_would_mean() {
        let cold_start = |behind: &[char], needed| ColdStartDocument {
            summary: "3 members, any 2 open".into(),
            members_needed: needed,
            members_needed_settled: 2,
            behind: behind.iter().map(|digit| id(*digit)).collect(),
            remark: "r".into(),
            ..ColdStartDocument::default()
        };
        for (behind, needed, level) in
            [(&['c'][..], Some(2), Level::Notice), (&['c'], Some(3), Level::Warning), (&['b', 'c'], None, Level::Error)]
        {
            let change = |status: &mut StatusDocument, _: &mut Vec<NodeDocument>| {
                status.cold_start = Some(cold_start(behind, needed));
            };
            check(change, &[(level, "cold-start", String::new())]);
        }
        check(|status, _| status.cold_start = Some(cold_start(&[], Some(2))), &[]);
        let removal = || UnfinishedRemovalDocument {
            node_id: id('d'),
            epoch: None,
            lacking: vec![id('c')],
            shares_needed: 1,
            text: "t".into(),
        };
        check(|status, _| status.unfinished_removals.push(removal()), &[(Level::Warning, "removal", id('d'))]);
    }

    #[test]
    fn members_and_their_changes() {
        check(
            |status, _| {
                status.members[1].reachable = false;
                status.margin = 0;
            },
            &[(Level::Error, "quorum", String::new()), (Level::Error, "member", id('b'))],
        );
        check(|status, _| status.members[1].lag = Some(50_000), &[(Level::Warning, "member", id('b'))]);
        check(|status, _| status.alarms.push("NOSPACE".into()), &[(Level::Error, "alarm", String::new())]);
        let learner = || MemberDocument { node_id: Some(id('d')), learner: true, ..MemberDocument::default() };
        let change = |running_for| ChangeDocument {
            operation: "add".into(),
            node_id: id('d'),
            waiting_for: "it to catch up".into(),
            running_for,
        };
        check(|status, _| status.members.push(learner()), &[(Level::Error, "learner", id('d'))]);
        check(
            |status, _| {
                status.members.push(learner());
                status.change = Some(change(2.0));
            },
            &[(Level::Notice, "learner", id('d')), (Level::Notice, "change", id('d'))],
        );
        check(
            |status, _| {
                status.members.push(learner());
                status.change = Some(change(200.0));
            },
            &[(Level::Error, "learner", id('d')), (Level::Warning, "change", id('d'))],
        );
        let queued = |attempts| QueuedDocument { node_id: id('e'), reason: "its turn comes".into(), attempts };
        check(|status, _| status.queue.push(queued(0)), &[(Level::Notice, "queue", id('e'))]);
        check(|status, _| status.queue.push(queued(3)), &[(Level::Error, "queue", id('e'))]);
    }

    #[test]
    fn the_numbers_of_the_quorum_are_told_once() {
        let mut observations = well();
        let ClusterObservation { nodes: Ok(nodes), status: Ok(status) } = &mut observations.cluster else {
            unreachable!("all is well")
        };
        (status.members[1].reachable, status.margin) = (false, 0);
        nodes[1].health = "HEARTBEAT_TIMEOUT".into();
        observations.nodes[1].status = Err("it refuses connections".into());
        let findings = judge(&observations, "");
        let text = format!("{findings:?}");
        assert_eq!(text.matches("2 of 3 members with a vote answer").count(), 1, "{text}");
        let quorum = findings.iter().find(|finding| finding.check == "quorum").unwrap();
        assert_eq!(quorum.cause.as_deref(), Some(&*format!("no answer of {}", id('b'))));
        // What some did not answer to is not in order.
        let summary = findings.iter().find(|finding| finding.what.contains("1 did not answer")).unwrap();
        assert_eq!(summary.level, Level::Warning);
    }

    #[test]
    fn small_clusters_are_told_what_they_lack() {
        check(
            |status, _| {
                status.members.truncate(2);
                status.margin = 0;
            },
            &[(Level::Warning, "quorum", String::new())],
        );
        check(
            |status, _| {
                status.members.truncate(1);
                (status.quorum, status.margin) = (1, 0);
            },
            &[(Level::Notice, "quorum", String::new())],
        );
    }

    #[test]
    fn nodes_one_by_one() {
        let silent = || (Level::Warning, "heartbeat", String::new());
        check(
            |_, nodes| nodes[2].health = "HEARTBEAT_TIMEOUT".into(),
            &[silent(), (Level::Error, "heartbeat", id('c'))],
        );
        check(
            |_, nodes| nodes[2].health = "UNKNOWN".into(),
            &[(Level::Notice, "heartbeat", String::new()), (Level::Notice, "heartbeat", id('c'))],
        );
        // The one that answers for the cluster lives, whoever it has heard of so far.
        check(|_, nodes| nodes[0].health = "UNKNOWN".into(), &[]);
        check(
            |status, _| {
                status.other_processes.push(OtherProcessDocument { node_id: id('b'), address: "192.0.2.1".into() });
            },
            &[(Level::Error, "node-runs-twice", id('b'))],
        );
        check(|_, nodes| nodes[2].version = Some("0.2.0".into()), &[(Level::Warning, "versions", String::new())]);
        check(|_, nodes| nodes[2].version = Some("0.3.0".into()), &[(Level::Error, "versions", String::new())]);
        check(|_, nodes| nodes[2].version = Some("1.0.0".into()), &[(Level::Error, "versions", String::new())]);
        let other = |state: &str| NodeDocument { node_id: id('d'), state: state.into(), ..NodeDocument::default() };
        check(|_, nodes| nodes.push(other("NEW")), &[(Level::Notice, "approval", id('d'))]);
        check(|_, nodes| nodes.push(other("STANDBY")), &[(Level::Notice, "approval", id('d'))]);
        check(|_, nodes| nodes.push(other("DECOMMISSIONED")), &[(Level::Notice, "leaving", id('d'))]);
        check(|_, nodes| nodes.push(other("77")), &[(Level::Warning, "nodes", id('d'))]);
        let leaving = || DecommissionDocument { node_id: id('c'), phase: "CLEANING_UP".into() };
        check(|status, _| status.decommissioning.push(leaving()), &[(Level::Notice, "leaving", id('c'))]);
        check(
            |status, nodes| {
                status.decommissioning.push(leaving());
                nodes[2].health = "HEARTBEAT_TIMEOUT".into();
            },
            &[silent(), (Level::Error, "heartbeat", id('c')), (Level::Error, "leaving", id('c'))],
        );
    }

    #[test]
    fn what_nodes_say_of_themselves() {
        let mut observations = well();
        observations.nodes[0].status = Err("nobody listens".into());
        let json = serde_json::json!([
            {"name": "disk-full", "severity": "error", "since": "2026-01-01T00:00:00Z", "message": "m", "hint": "make room"},
            {"name": "old", "severity": "warning", "since": "2026-01-01T00:00:00Z", "message": "m", "hint": "renew it"},
            {"name": "news", "severity": "info", "since": "2026-01-01T00:00:00Z", "message": "m", "hint": ""},
        ]);
        let status = |index: usize| Status {
            conditions: serde_json::from_value(json.clone()).unwrap(),
            ..observations.nodes[index].status.clone().unwrap()
        };
        let (conditions, failed) =
            (status(1), Status { state: polis_control::NodeState::Joining, conditions: vec![], ..status(2) });
        observations.nodes[1].status = Ok(conditions);
        observations.nodes[2].status = Ok(failed);
        assert_eq!(
            found(&observations),
            [
                (Level::Error, "node", id('a')),
                (Level::Error, "condition", id('b')),
                (Level::Warning, "condition", id('b')),
                (Level::Notice, "condition", id('b')),
                (Level::Error, "node", id('c')),
            ]
        );
    }

    #[test]
    fn without_a_leader_the_rest_is_still_judged() {
        let mut observations = well();
        let lost = || Err("127.1.0.97:7835: no leader".to_owned());
        observations.cluster = ClusterObservation { nodes: Err("no leader".into()), status: Err("no leader".into()) };
        observations.endpoints[0].answer = Err("it refuses connections".into());
        observations.endpoints[1].answer = Ok(EndpointAnswer { node_id: Some(id('b')), leader: lost() });
        assert_eq!(
            found(&observations),
            [(Level::Error, "endpoint", String::new()), (Level::Error, "leader", String::new())]
        );
        // Endpoints that follow different nodes.
        let mut observations = well();
        observations.endpoints[1].answer = Ok(EndpointAnswer { node_id: Some(id('b')), leader: Ok(id('b')) });
        assert_eq!(found(&observations), [(Level::Warning, "leader", String::new())]);
        // One answer of the leader without the other.
        let mut observations = well();
        observations.cluster.nodes = Err("too large".into());
        assert_eq!(found(&observations), [(Level::Error, "nodes", String::new())]);
        let mut observations = well();
        observations.cluster.status = Err("UNIMPLEMENTED".into());
        assert_eq!(found(&observations), [(Level::Error, "leader", String::new())]);
    }
}
