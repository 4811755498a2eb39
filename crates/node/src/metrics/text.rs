//! A [`Snapshot`] in the text form that Prometheus reads (OpenMetrics 1.0).
//!
//! The alert rules in `share/alerts.yml` go by these names; a test compares the two.

use std::fmt;
use std::sync::atomic::AtomicU64;

use polis_condition::Severity;
use polis_consensus::Phase;
use polis_control::{NodeState, Status};
use polis_supervisor::State;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::snapshot::{LeadingSample, Snapshot};

/// Media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One label.
type Label = [(&'static str, String); 1];

/// The text.
///
/// # Errors
///
/// When a value cannot be written, which does not happen.
pub(crate) fn render(snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut page = Page(Registry::default());
    page.node(snapshot);
    page.runnables(snapshot);
    page.consensus(snapshot);
    page.leading(snapshot.leading.as_ref());
    page.process(snapshot);
    let mut text = String::new();
    encode(&mut text, &page.0)?;
    Ok(text)
}

/// A page of metrics that is made anew for each reader: nothing is counted that is not known elsewhere.
struct Page(Registry);

impl Page {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.0.register(name, help, gauge);
    }

    fn optional(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(name, help, value);
        }
    }

    fn seconds(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            let gauge = Gauge::<f64, AtomicU64>::default();
            gauge.set(value);
            self.0.register_with_unit(name, help, Unit::Seconds, gauge);
        }
    }

    fn bytes(&mut self, name: &str, help: &str, value: Option<u64>) {
        if let Some(value) = value {
            let gauge = Gauge::<f64, AtomicU64>::default();
            gauge.set(value as f64);
            self.0.register_with_unit(name, help, Unit::Bytes, gauge);
        }
    }

    fn gauges<L>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (L, f64)>)
    where
        L: EncodeLabelSet + Clone + Eq + std::hash::Hash + Send + Sync + fmt::Debug + 'static,
    {
        let family = Family::<L, Gauge<f64, AtomicU64>>::default();
        for (label, value) in values {
            family.get_or_create(&label).set(value);
        }
        self.0.register(name, help, family);
    }

    /// One value of several: 1 for the one that holds, 0 for the others.
    fn states<T: Copy + PartialEq>(
        &mut self,
        name: &str,
        help: &str,
        all: impl IntoIterator<Item = (T, &'static str)>,
        now: Option<T>,
    ) {
        let values = all.into_iter().map(|(state, label)| (label_of("state", label), flag(Some(state) == now)));
        self.gauges(name, help, values.collect::<Vec<_>>());
    }

    fn node(&mut self, snapshot: &Snapshot) {
        let status = &snapshot.status;
        self.gauges(
            "polis_build_info",
            "Version of Polis that runs",
            [(label_of("version", polis_version::text()), 1.0)],
        );
        self.states(
            "polis_node_state",
            "State of the node: 1 for the one that it is in",
            NodeState::ALL.map(|state| (state, state.name())),
            Some(status.state),
        );
        let conditions = status.conditions.iter().map(|condition| {
            let severity = match condition.severity {
                Severity::Info => "info",
                Severity::Warning => "warning",
                Severity::Error => "error",
            };
            ([("name", condition.name.clone()), ("severity", severity.to_owned())], 1.0)
        });
        self.gauges("polis_condition", "What is not as it should be", conditions.collect::<Vec<_>>());
        if let Some(contact) = &status.contact {
            self.gauge(
                "polis_contact",
                "Whether the leader of the cluster answers this node",
                flag(contact.in_contact),
            );
        }
        self.seconds(
            "polis_contact_age",
            "Time since the leader answered a heartbeat of this node",
            snapshot.contact_age.map(|age| age.as_secs_f64()),
        );
        self.seconds(
            "polis_snapshot_age",
            "Age of the newest snapshot of the cluster's state that the node keeps; absent when it has none",
            snapshot.snapshot_age.map(|age| age.as_secs_f64()),
        );
        self.locks(status);
        if let Some(epoch) = status.cold_start.as_ref().and_then(|cold_start| cold_start.epoch) {
            self.gauge(
                "polis_membership_incarnation",
                "Incarnation of the newest membership that the node has made durable",
                epoch.incarnation as f64,
            );
            self.gauge(
                "polis_membership_epoch",
                "Epoch of the newest membership that the node has made durable",
                epoch.epoch as f64,
            );
        }
    }

    /// How the node's data are opened. One whose data are not open has no certificate to serve this with: its page is in its
    /// report only.
    fn locks(&mut self, status: &Status) {
        self.gauge("polis_locked", "Whether the data of the node wait to be opened", flag(status.lock.is_some()));
        if let Some(shares) = status.lock.as_ref().and_then(|lock| lock.shares) {
            self.gauge("polis_unlock_shares", "Shares of its key that a locked node has", f64::from(shares.have));
            self.gauge("polis_unlock_shares_needed", "Shares that open a locked node", f64::from(shares.need));
        }
        if let Some(split) = status.cold_start.as_ref().and_then(|cold_start| cold_start.split.as_ref()) {
            self.gauge("polis_split_holders", "Nodes that hold a share of this node's key", split.holders.len() as f64);
            self.gauge(
                "polis_split_shares_needed",
                "Shares of them that open this node; 0 when it opens alone",
                f64::from(split.shares_needed),
            );
            self.gauge(
                "polis_split_verified",
                "Whether the shares were tried since they were given out, and have given the key",
                flag(split.verified),
            );
        }
    }

    fn runnables(&mut self, snapshot: &Snapshot) {
        let states = [State::New, State::Healthy, State::Dead, State::Done, State::Canceled];
        let counts = states.map(|state| {
            let count = snapshot.runnables.iter().filter(|runnable| runnable.state == state).count();
            (label_of("state", &state.to_string()), count as f64)
        });
        self.gauges("polis_runnables", "Runnables by state", counts);
        let name = |runnable: &polis_supervisor::NodeReport| label_of("runnable", runnable.distinguished_name.as_str());
        let up = |state| match state {
            State::Healthy | State::Done => true,
            State::New | State::Dead | State::Canceled => false,
        };
        let runnables = &snapshot.runnables;
        self.gauges(
            "polis_runnable_up",
            "Whether a runnable is healthy or done",
            runnables.iter().map(|runnable| (name(runnable), flag(up(runnable.state)))).collect::<Vec<_>>(),
        );
        self.gauges(
            "polis_runnable_failures_in_a_row",
            "How often a runnable has died without staying up",
            runnables
                .iter()
                .map(|runnable| (name(runnable), f64::from(runnable.failures_in_a_row)))
                .collect::<Vec<_>>(),
        );
        let deaths = Family::<Label, Counter>::default();
        for (name, count) in &snapshot.deaths {
            deaths.get_or_create(&label_of("runnable", name.as_str())).inc_by(*count);
        }
        self.0.register("polis_runnable_deaths", "How often a runnable has died since the process began", deaths);
    }

    fn consensus(&mut self, snapshot: &Snapshot) {
        let Some(member) = &snapshot.member else { return };
        let phases = [
            Phase::Down,
            Phase::Starting,
            Phase::Learner,
            Phase::Leaderless,
            Phase::Ready,
            Phase::Hanging,
            Phase::Removed,
        ];
        self.states(
            "polis_consensus_phase",
            "What the consensus member of this node is doing: 1 for what it is",
            phases.map(|phase| (phase, phase_name(phase))),
            Some(member.phase),
        );
        self.gauge("polis_consensus_has_leader", "Whether this member sees a leader", flag(member.leader.is_some()));
        self.gauge("polis_consensus_leads", "Whether this member leads", flag(member.is_leader()));
        self.gauge("polis_consensus_raft_term", "Term of raft; 0 when it is not known", member.raft_term as f64);
        self.gauge(
            "polis_consensus_no_space",
            "Whether etcd has no room left and refuses every write (NOSPACE)",
            flag(member.no_space),
        );
        let kinds = ["voter", "learner", "unstarted"].map(|kind| {
            let count = member.members.iter().filter(|member| {
                kind == match (member.is_started, member.is_learner) {
                    (false, _) => "unstarted",
                    (true, true) => "learner",
                    (true, false) => "voter",
                }
            });
            (label_of("kind", kind), count.count() as f64)
        });
        self.gauges("polis_consensus_members", "Members of the consensus, as this one knows them", kinds);
        self.seconds(
            "polis_consensus_heartbeat_interval",
            "Raft's heartbeat interval",
            Some(member.timing.heartbeat().as_secs_f64()),
        );
        self.seconds(
            "polis_consensus_election_timeout",
            "Raft's election timeout",
            Some(member.timing.election().as_secs_f64()),
        );
    }

    fn leading(&mut self, leading: Option<&LeadingSample>) {
        self.gauge("polis_curator_leads", "Whether this node leads the cluster", flag(leading.is_some()));
        let Some(LeadingSample { heartbeat_ages, quorum, joins }) = leading else { return };
        let node = |node: &polis_identity::NodeId| label_of("node", &node.to_string());
        let heard = heartbeat_ages.iter().filter_map(|(id, age)| Some((node(id), age.as_ref()?.as_secs_f64())));
        self.gauges(
            "polis_node_heartbeat_age_seconds",
            "Time since the leader heard of a node; absent for one that it has not heard of since it leads",
            heard.collect::<Vec<_>>(),
        );
        let silent = heartbeat_ages.values().filter(|age| age.is_none()).count();
        self.gauge("polis_nodes_never_heard", "Nodes that the leader has not heard of since it leads", silent as f64);
        if let Some(quorum) = quorum {
            self.gauge("polis_quorum_voters", "Consensus members with a vote", quorum.voters as f64);
            self.gauge("polis_quorum_answering", "Consensus members with a vote that answer", quorum.answering as f64);
            self.gauge(
                "polis_quorum_margin",
                "How many more consensus members may fail until nothing can be written",
                quorum.margin() as f64,
            );
        }
        self.gauge("polis_joins_waiting", "Nodes that wait to become consensus members", joins.len() as f64);
        self.gauges(
            "polis_join_attempts",
            "How often the attempt to make a waiting node a consensus member was given up",
            joins.iter().map(|(id, attempts)| (node(id), f64::from(*attempts))).collect::<Vec<_>>(),
        );
    }

    fn process(&mut self, snapshot: &Snapshot) {
        let process = &snapshot.process;
        self.bytes("process_resident_memory", "Memory that the process holds", process.resident_bytes);
        self.optional("process_open_fds", "Open file descriptors", process.open_files.map(|count| count as f64));
        self.optional(
            "process_max_fds",
            "Most open file descriptors",
            process.open_files_limit.map(|count| count as f64),
        );
        self.optional("process_threads", "Threads", process.threads.map(|count| count as f64));
        if let Some(seconds) = process.processor_seconds {
            let counter = Counter::<f64, AtomicU64>::default();
            counter.inc_by(seconds);
            self.0.register_with_unit("process_cpu", "Processor time that was used", Unit::Seconds, counter);
        }
        self.gauge("polis_log_entries", "Entries that the log holds", snapshot.log.entries as f64);
        self.bytes("polis_log", "Memory that the log holds", Some(snapshot.log.bytes as u64));
    }
}

fn label_of(name: &'static str, value: &str) -> Label {
    [(name, value.to_owned())]
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Down => "down",
        Phase::Starting => "starting",
        Phase::Learner => "learner",
        Phase::Leaderless => "leaderless",
        Phase::Ready => "ready",
        Phase::Hanging => "hanging",
        Phase::Removed => "removed",
    }
}

const fn flag(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

#[cfg(test)]
#[path = "text_tests.rs"]
pub(super) mod tests;
