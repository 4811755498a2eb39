use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use polis_condition::Condition;
use polis_consensus::{Member, Status as MemberStatus, Timing};
use polis_control::{
    ColdStart, Contact, EnrolmentPhase, Epoch, LockState, LockStatus, NodeState, SharesStatus, SplitStatus, Status,
};
use polis_identity::{NodeId, NodeKey};
use polis_logtree::{DistinguishedName, Usage};
use polis_supervisor::{NodeReport, State};

use super::super::{ProcessSample, QuorumSample};
use super::*;

/// A node about which everything is known: it leads a cluster of three.
pub(crate) fn full() -> Snapshot {
    let name = |text| DistinguishedName::parse(text).unwrap();
    let runnable = |dn, state, failures_in_a_row| NodeReport {
        distinguished_name: name(dn),
        state,
        since: SystemTime::UNIX_EPOCH,
        restarts: 3,
        recent_restarts: 1,
        failures_in_a_row,
        last_error: Some("it failed".into()),
        starts_in: None,
        running: true,
        cancelled: false,
        overdue: false,
    };
    let [first, second] = [(), ()].map(|()| NodeId::of(&NodeKey::generate().public()));
    let member = |id, is_learner, is_started| Member { id, node_id: None, address: None, is_learner, is_started };
    Snapshot {
        status: Status {
            state: NodeState::Running,
            reason: None,
            node_id: None,
            cluster_id: None,
            phase: EnrolmentPhase::Enrolled,
            address: None,
            roles: vec![],
            cold_start: Some(ColdStart {
                mode: None,
                epoch: Some(Epoch { incarnation: 1, epoch: 7 }),
                split: Some(SplitStatus {
                    epoch: Epoch { incarnation: 1, epoch: 7 },
                    shares_needed: 2,
                    holders: vec!["a".into(), "b".into()],
                    verified: true,
                }),
            }),
            contact: Some(Contact { in_contact: true, last_heartbeat: None, leader: None, last_failure: None }),
            consensus: None,
            storage: None,
            lock: Some(LockStatus {
                state: LockState::Locked,
                reason: "r".into(),
                shares: Some(SharesStatus { have: 1, need: 2 }),
                fingerprint: None,
            }),
            snapshots: None,
            conditions: vec![Condition {
                name: "storage-insecure".into(),
                severity: Severity::Warning,
                since: jiff::Timestamp::UNIX_EPOCH,
                message: "m".into(),
                hint: String::new(),
            }],
            running: true,
        },
        runnables: vec![runnable("root", State::Healthy, 0), runnable("root.manager", State::Dead, 4)],
        deaths: BTreeMap::from([(name("root.manager"), 9)]),
        contact_age: Some(Duration::from_millis(1500)),
        snapshot_age: Some(Duration::from_secs(600)),
        member: Some(MemberStatus {
            phase: Phase::Ready,
            process_id: Some(7),
            version: None,
            timing: Timing::Alone,
            member_id: Some(1),
            is_learner: false,
            leader: Some(1),
            raft_term: 5,
            no_space: true,
            damage: None,
            cluster_id: Some(9),
            members: vec![member(1, false, true), member(2, true, true), member(3, true, false)],
        }),
        leading: Some(LeadingSample {
            heartbeat_ages: BTreeMap::from([(first, Some(Duration::from_secs(2))), (second, None)]),
            quorum: Some(QuorumSample { voters: 3, answering: 2 }),
            joins: BTreeMap::from([(second, 2)]),
        }),
        log: Usage { names: 2, entries: 30, bytes: 4000, readers: 1 },
        process: ProcessSample {
            resident_bytes: Some(1 << 20),
            open_files: Some(30),
            open_files_limit: Some(1024),
            processor_seconds: Some(1.5),
            threads: Some(5),
        },
    }
}

/// The value of a sample, by its name and labels as they are printed.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {sample} in\n{text}")).parse().unwrap()
}

/// Names of all samples on a page.
fn names(text: &str) -> BTreeSet<&str> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.split(['{', ' ']).next()).collect()
}

#[test]
fn a_node_about_which_everything_is_known() {
    let text = render(&full()).unwrap();
    for (sample, expect) in [
        (r#"polis_node_state{state="Running"}"#, 1.0),
        (r#"polis_node_state{state="Failed"}"#, 0.0),
        (r#"polis_condition{name="storage-insecure",severity="warning"}"#, 1.0),
        ("polis_contact", 1.0),
        ("polis_contact_age_seconds", 1.5),
        ("polis_membership_epoch", 7.0),
        ("polis_snapshot_age_seconds", 600.0),
        ("polis_locked", 1.0),
        ("polis_unlock_shares", 1.0),
        ("polis_unlock_shares_needed", 2.0),
        ("polis_split_holders", 2.0),
        ("polis_split_shares_needed", 2.0),
        ("polis_split_verified", 1.0),
        (r#"polis_runnables{state="dead"}"#, 1.0),
        (r#"polis_runnable_up{runnable="root.manager"}"#, 0.0),
        (r#"polis_runnable_failures_in_a_row{runnable="root.manager"}"#, 4.0),
        (r#"polis_runnable_deaths_total{runnable="root.manager"}"#, 9.0),
        (r#"polis_consensus_phase{state="ready"}"#, 1.0),
        (r#"polis_consensus_phase{state="hanging"}"#, 0.0),
        ("polis_consensus_has_leader", 1.0),
        ("polis_consensus_leads", 1.0),
        ("polis_consensus_raft_term", 5.0),
        ("polis_consensus_no_space", 1.0),
        (r#"polis_consensus_members{kind="voter"}"#, 1.0),
        (r#"polis_consensus_members{kind="learner"}"#, 1.0),
        (r#"polis_consensus_members{kind="unstarted"}"#, 1.0),
        ("polis_curator_leads", 1.0),
        ("polis_nodes_never_heard", 1.0),
        ("polis_quorum_margin", 0.0),
        ("polis_quorum_voters", 3.0),
        ("polis_quorum_answering", 2.0),
        ("polis_joins_waiting", 1.0),
        ("process_resident_memory_bytes", 1_048_576.0),
        ("process_open_fds", 30.0),
        ("process_cpu_seconds_total", 1.5),
        ("polis_log_bytes", 4000.0),
    ] {
        assert!((value(&text, sample) - expect).abs() < 1e-9, "{sample} in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(names(&text).iter().filter(|name| name.starts_with("polis_node_heartbeat_age_seconds")).count(), 1);
}

#[test]
fn what_is_not_known_is_not_there() {
    let mut snapshot = full();
    (snapshot.member, snapshot.leading, snapshot.contact_age) = (None, None, None);
    (snapshot.status.contact, snapshot.status.cold_start) = (None, None);
    snapshot.process = ProcessSample::default();
    let text = render(&snapshot).unwrap();
    let found = names(&text);
    for name in
        ["polis_consensus_phase", "polis_quorum_margin", "polis_contact", "process_open_fds", "polis_joins_waiting"]
    {
        assert!(!found.contains(name), "{name} in\n{text}");
    }
    assert!(value(&text, "polis_curator_leads").abs() < 1e-9);
}

#[test]
fn the_alert_rules_go_by_names_that_exist() {
    let rules = include_str!("../../../../share/alerts.yml");
    let text = render(&full()).unwrap();
    let mut known = names(&text);
    // etcd's own, passed on under /metrics/etcd.
    known.extend(["etcd_server_quota_backend_bytes", "etcd_mvcc_db_total_size_in_bytes", "up"]);
    let expressions: Vec<&str> = rules.lines().filter_map(|line| line.trim_start().strip_prefix("expr: ")).collect();
    assert!(expressions.len() >= 8, "{expressions:?}");
    for expression in expressions {
        // What stands in braces, brackets and quotation marks are labels and durations.
        let bare: String = expression
            .split_inclusive(['{', '}', '[', ']'])
            .scan(false, |inside, part| {
                let keep = !*inside;
                *inside = part.ends_with(['{', '[']);
                Some(if keep { part } else { " " })
            })
            .collect();
        let words = bare.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        let metrics: Vec<&str> = words.filter(|word| word.contains('_') || *word == "up").collect();
        let functions = ["group_left", "clamp_min", "count_values"];
        for metric in metrics.iter().filter(|metric| !functions.contains(metric)) {
            assert!(known.contains(*metric), "{metric} in {expression}");
        }
        assert!(!metrics.is_empty(), "{expression}");
    }
}
