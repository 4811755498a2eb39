//! What the observations mean for single nodes. Nothing here asks anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_condition::Severity;
use polis_control::NodeState;

use super::finding::{Finding, Level};
use super::judge::Judge;
use crate::fleet::{NodeDocument, age};
use crate::view::count;

/// Age at which the newest snapshot of all members is too old: they take one every hour, and two of a member may fail for a reason that
/// passes. A member's own condition has the same limit.
pub(super) const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(3 * 3600);

impl Judge<'_> {
    pub(super) fn nodes(&self, findings: &mut Vec<Finding>) {
        let nodes = self.known_nodes();
        // The leader answers, so it lives, whether or not it has had its own first heartbeat.
        let leads = |node: &NodeDocument| self.status().is_some_and(|status| status.leader == node.node_id);
        let lives = |node: &NodeDocument| node.is_healthy() || node.health == "UNKNOWN" && leads(node);
        let up = || nodes.iter().filter(|node| node.is_up());
        let healthy = up().filter(|node| lives(node)).count();
        if healthy > 0 {
            let all = up().count();
            let verb = if healthy == 1 { "is" } else { "are" };
            let level = if healthy == all {
                Level::Ok
            } else if up().any(|node| node.health == "HEARTBEAT_TIMEOUT") {
                Level::Warning
            } else {
                Level::Notice
            };
            let finding =
                Finding::new(level, "heartbeat", format!("{healthy} of {} {verb} healthy", count(all, "node")));
            findings.push(summed_up(finding));
        }
        for node in nodes {
            let id = &node.node_id;
            let finding = match (&*node.state, &*node.health) {
                ("UP", _) if lives(node) => continue,
                ("UP", "HEARTBEAT_TIMEOUT") => {
                    let what = match node.time_since_heartbeat {
                        Some(seconds) => format!("the leader has not heard of it for {}", age(seconds)),
                        None => "the leader has not heard of it since it leads".to_owned(),
                    };
                    let address = node.address.as_ref().map(|address| format!("; it was last at {address}"));
                    Finding::new(Level::Error, "heartbeat", what)
                        .cause(format!(
                            "the machine is down, its network is cut, or its process hangs{}",
                            address.unwrap_or_default()
                        ))
                        .quorum(self.quorum_without(id))
                        .next(format!("look at the machine; then {}", self.command(&format!("node logs {id}"))))
                }
                ("UP", _) => Finding::new(Level::Notice, "heartbeat", "the leader has not heard of it yet")
                    .cause("the leader has only just begun to lead")
                    .quorum(self.quorum_without(id))
                    .next(format!("within seconds it is known; look again: {}", self.command("cluster health"))),
                ("NEW", _) => Finding::new(Level::Notice, "approval", "asks for admission and waits for approval")
                    .cause(format!("its key is {}", node.public_key))
                    .quorum("none: it is no node of the cluster yet")
                    .next(format!(
                        "compare the key with what the machine shows, then: {}",
                        self.command(&format!("node approve {id}"))
                    )),
                ("STANDBY", _) => Finding::new(Level::Notice, "approval", "was approved, but has not come to join yet")
                    .quorum("none: it is no node of the cluster yet")
                    .next("look at the machine: polis node status --root DIR there"),
                ("DECOMMISSIONED", _) => {
                    Finding::new(Level::Notice, "leaving", "was decommissioned and is still listed")
                        .quorum("none: it has no vote")
                        .next(self.command(&format!("node delete {id}")))
                }
                (other, _) => Finding::new(
                    Level::Warning,
                    "nodes",
                    format!("is in the state {other}, which this version does not know"),
                )
                .quorum(self.quorum_without(id))
                .next("use the polis of the version that the nodes run"),
            };
            findings.push(finding.node(id));
        }
    }

    pub(super) fn leaving(&self, findings: &mut Vec<Finding>) {
        let Some(status) = self.status() else { return };
        for leaving in &status.decommissioning {
            let id = &leaving.node_id;
            let node = self.known_nodes().iter().find(|node| node.node_id == *id);
            // The state says it already.
            if leaving.phase == "DECOMMISSIONED" {
                continue;
            }
            let hears = node.is_some_and(NodeDocument::is_healthy);
            let finding = if hears {
                Finding::new(Level::Notice, "leaving", format!("is being decommissioned ({})", leaving.phase))
            } else {
                Finding::new(Level::Error, "leaving", format!("is stuck in its decommissioning ({})", leaving.phase))
                    .cause("only the node itself can erase its keys, and the leader does not hear of it")
                    .next(format!(
                        "start the machine; if it is dead for good: {}",
                        self.command(&format!("node delete {id} --bypass-not-decommissioned"))
                    ))
            };
            findings.push(finding.node(id).quorum(self.quorum_without(id)));
        }
    }

    /// Whoever leads sees both, and the one that is listed may be well.
    pub(super) fn other_processes(&self, findings: &mut Vec<Finding>) {
        let Some(status) = self.status() else { return };
        for other in &status.other_processes {
            let id = &other.node_id;
            findings.push(
                Finding::new(Level::Error, "node-runs-twice", format!("runs twice: another process with its key is at {}", other.address))
                    .node(id)
                    .cause("its root directory was copied, or is started on two machines; the leader refuses the later process")
                    .quorum("as members of the consensus the two could together damage the state of the cluster")
                    .next(format!(
                        "stop the process at {} at once, and delete its root directory if that is the copy; a machine that is to be \
                         another node starts with an empty one",
                        other.address
                    )),
            );
        }
    }

    pub(super) fn versions(&self, findings: &mut Vec<Finding>) {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for node in self.known_nodes().iter().filter(|node| node.is_up()) {
            if let Some(version) = &node.version {
                versions.entry(version).or_default().push(&node.node_id);
            }
        }
        let describe = |(version, nodes): (&&str, &Vec<&str>)| match &nodes[..] {
            [one] => format!("{version} on {one}"),
            several => format!("{version} on {}", count(several.len(), "node")),
        };
        match versions.len() {
            0 => {}
            1 => findings.extend(
                versions
                    .keys()
                    .map(|version| Finding::new(Level::Ok, "versions", format!("all nodes run version {version}"))),
            ),
            several => {
                // Two that are not releases with a number are taken for neighbours: there is nothing to hold against them.
                let lines: BTreeSet<_> = versions.keys().filter_map(|version| major_and_minor(version)).collect();
                let neighbours = match (lines.first(), lines.last()) {
                    (Some((low_major, low)), Some((high_major, high))) => low_major == high_major && high - low <= 1,
                    (None, _) | (_, None) => true,
                };
                let finding = if neighbours {
                    Finding::new(Level::Warning, "versions", format!("the nodes run {several} versions"))
                        .next("bring all nodes to the same version; an update that is under way ends it")
                } else {
                    let what =
                        "the nodes run versions that are not made to run together: more than one minor version apart";
                    Finding::new(Level::Error, "versions", what)
                        .next("update the oldest nodes first, one minor version at a time")
                };
                let cause = versions.iter().map(describe).collect::<Vec<_>>().join(", ");
                findings.push(finding.cause(cause).quorum("none by itself"));
            }
        }
    }

    /// How old the newest copy of the state is. Why one is old, or cannot be taken, is a condition of its node.
    pub(super) fn snapshots(&self, findings: &mut Vec<Finding>) {
        let statuses = self.observations.nodes.iter().filter_map(|node| node.status.as_ref().ok());
        let members: Vec<_> = statuses.filter(|status| status.consensus.is_some()).collect();
        let newest: Vec<_> =
            members.iter().filter_map(|status| status.snapshots.as_ref()).map(|kept| kept.newest).collect();
        let save = || self.command("cluster snapshot save FILE");
        findings.push(match newest.iter().max() {
            None if members.is_empty() => return,
            None => Finding::new(Level::Notice, "snapshots", "no member has a snapshot of the state yet")
                .cause("each takes its first one a minute after it has come to work, and says in a condition why when it cannot")
                .quorum("none: it is what is left when all members are lost")
                .next(format!("look again in a minute; or take one: {}", save())),
            Some(last) => {
                let seconds = self.observations.at.as_second().saturating_sub(last.as_second());
                let members = count(newest.len(), "member's snapshot");
                let text = format!("the newest of {members} is {} old", age(seconds as f64));
                if u64::try_from(seconds).is_ok_and(|seconds| seconds > SNAPSHOT_PATIENCE.as_secs()) {
                    Finding::new(Level::Warning, "snapshots", text)
                        .cause("each member takes one every hour; the conditions of the members say why they cannot")
                        .quorum("none: it is what is left when all members are lost")
                        .next(format!("see to the conditions of the members; until then keep one elsewhere: {}", save()))
                } else {
                    Finding::new(Level::Ok, "snapshots", text)
                }
            }
        });
    }

    pub(super) fn conditions(&self, findings: &mut Vec<Finding>) {
        let (mut silent, mut fine) = (0, 0);
        for observation in &self.observations.nodes {
            let id = &observation.node_id;
            let status = match &observation.status {
                Ok(status) => status,
                Err(cause) => {
                    silent += 1;
                    findings.push(
                        Finding::new(Level::Error, "node", "does not say how it is")
                            .node(id)
                            .cause(cause.clone())
                            .quorum(self.quorum_without(id))
                            .next("look at the machine: polis node status --root DIR there"),
                    );
                    continue;
                }
            };
            let mut sound = true;
            if status.state != NodeState::Running {
                sound = false;
                let finding = Finding::new(Level::Error, "node", format!("is in the state {}", status.state));
                let finding = match &status.reason {
                    Some(reason) => finding.cause(reason.clone()),
                    None => finding,
                };
                findings.push(
                    finding.node(id).quorum(self.quorum_without(id)).next(self.command(&format!("node logs {id}"))),
                );
            }
            for condition in &status.conditions {
                let (level, quorum) = match condition.severity {
                    Severity::Error => (Level::Error, self.quorum_without(id)),
                    Severity::Warning => (Level::Warning, "none by itself".to_owned()),
                    Severity::Info => (Level::Notice, "none".to_owned()),
                };
                sound &= level != Level::Error;
                let finding = Finding::new(level, "condition", format!("{}: {}", condition.name, condition.message))
                    .node(id)
                    .cause(format!("since {}", condition.since))
                    .quorum(quorum);
                findings.push(if condition.hint.is_empty() { finding } else { finding.next(condition.hint.clone()) });
            }
            fine += usize::from(sound);
        }
        if fine > 0 {
            let asked = self.observations.nodes.len();
            let level = if silent == 0 { Level::Ok } else { Level::Warning };
            let silent = if silent == 0 { String::new() } else { format!(", {silent} did not answer") };
            let what = format!("{fine} of {} asked directly have no error{silent}", count(asked, "node"));
            findings.push(summed_up(Finding::new(level, "condition", what)));
        }
    }
}

/// A count of nodes that is not in order; what is to be done stands with each of them.
fn summed_up(finding: Finding) -> Finding {
    match finding.level {
        Level::Ok => finding,
        Level::Error | Level::Warning | Level::Notice => {
            finding.quorum("said of each of the others").next("see to each of the others, as said there")
        }
    }
}

/// The first two numbers of a version.
fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
