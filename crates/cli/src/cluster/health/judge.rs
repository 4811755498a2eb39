//! What the observations mean. Nothing here asks anybody.

#[cfg(test)]
mod tests;

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
