use polis_control::Status;

use super::*;
use crate::cluster::health::observations::{ClusterObservation, EndpointObservation, NodeObservation};
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
        nodes: digits.map(|digit| NodeObservation { node_id: id(digit), status: Ok(member_status(digit)) }).into(),
    }
}

/// What a consensus member says of itself.
fn member_status(digit: char) -> Status {
    let consensus = polis_control::ConsensusStatus { member_id: None, leader: None, members: Vec::new() };
    Status { consensus: Some(consensus), snapshots: Some(snapshot(9_000)), ..node_status(&id(digit)) }
}

#[test]
fn the_age_of_the_newest_snapshot_is_judged() {
    // Seconds at which each of the members has taken its newest one, of 10,000 or a day more.
    const DAY: i64 = 86_400;
    let cases: [(&[i64], i64, Level, &str); 5] = [
        (&[2_800, 6_400], 10_000, Level::Ok, "2 member's snapshots is 60m"),
        (&[], 10_000, Level::Notice, "no member has a snapshot"),
        (&[6_400], 6_400 + 3 * 3600, Level::Ok, "1 member's snapshot is 3h"),
        (&[6_400, 6_300], 6_401 + 3 * 3600, Level::Warning, "2 member's snapshots is 3h"),
        // The clocks differ.
        (&[DAY], 10_000, Level::Ok, "1 member's snapshot is"),
    ];
    for (taken, now, level, text) in cases {
        let mut observations = well();
        observations.at = jiff::Timestamp::from_second(now).unwrap();
        for (place, node) in observations.nodes.iter_mut().enumerate() {
            let Ok(status) = &mut node.status else { unreachable!("all is well") };
            status.snapshots = taken.get(place).map(|seconds| snapshot(*seconds));
        }
        let findings = judge(&observations, "");
        let finding = findings.iter().find(|finding| finding.check == "snapshots").unwrap();
        assert!(finding.level == level && finding.what.contains(text), "{taken:?} at {now}: {finding:?}");
    }
    // Nobody is there who could have one.
    let mut observations = well();
    for node in &mut observations.nodes {
        let Ok(status) = &mut node.status else { unreachable!("all is well") };
        (status.consensus, status.snapshots) = (None, None);
    }
    assert!(judge(&observations, "").iter().all(|finding| finding.check != "snapshots"));
}

fn snapshot(seconds: i64) -> polis_control::SnapshotsStatus {
    let newest = jiff::Timestamp::from_second(seconds).unwrap();
    polis_control::SnapshotsStatus { newest, revision: 7, kept: 1, tried: true }
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

fn check(change: impl FnOnce(&mut StatusDocument, &mut Vec<NodeDocument>), expect: &[(Level, &'static str, String)]) {
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
    let expected =
        ["endpoint", "endpoint", "endpoint", "leader", "quorum", "heartbeat", "versions", "snapshots", "condition"];
    assert_eq!(checks, expected);
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
    check(|_, nodes| nodes[2].health = "HEARTBEAT_TIMEOUT".into(), &[silent(), (Level::Error, "heartbeat", id('c'))]);
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
