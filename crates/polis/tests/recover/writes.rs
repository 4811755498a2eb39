//! What was acknowledged before the survivor's rest is in the recovered state, and the report says as of when that is.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::Cluster;
use polis_testkit::owner_client::OwnerClient;

use crate::{REFUSED, REST, ends_with, plain, recover};

/// Labels that are written in turn, so that as many of the last writes are each looked for. A node has at most 128.
const LABELS: u64 = 32;

/// How long is written before the rest: each label is written several times.
const WRITING: Duration = Duration::from_secs(3);

/// Longest time that a write may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long a refusal may take whose addresses are all closed: less than the time for which silent ones are waited for.
const CLOSED_PATIENCE: Duration = Duration::from_secs(8);

/// The last acknowledged and the last sent value of each label.
type Written = Vec<(u64, u64)>;

fn label(number: u64) -> String {
    format!("written-{number}")
}

/// Writes numbers through whoever leads, for this long.
fn write(cluster: &Cluster, node: &str, time: Duration) -> Written {
    let hosts = cluster.hosts.iter();
    let mut clients: Vec<_> =
        hosts.map(|host| OwnerClient::new(&cluster.configuration(), host.ip(), TIMEOUT)).collect();
    let (began, mut turn, mut value) = (Instant::now(), 0, 0);
    let mut written = vec![(0, 0); usize::try_from(LABELS).unwrap()];
    while began.elapsed() < time {
        value += 1;
        let place = usize::try_from(value % LABELS).unwrap();
        written[place].1 = value;
        let count = clients.len();
        if clients[turn % count].set_label(node, &label(value % LABELS), &value.to_string()) {
            written[place].0 = value;
        } else {
            turn += 1;
        }
    }
    written
}

#[test]
fn what_was_acknowledged_before_the_rest_is_there_and_the_report_says_as_of_when() {
    let mut cluster = plain(3);
    cluster.grow_to(3);
    let ids = [0, 1, 2].map(|number| cluster.id(number));
    let written = write(&cluster, &ids[0], WRITING);
    let acknowledged = written.iter().filter(|(acknowledged, _)| *acknowledged > 0).count();
    let last = written.iter().map(|(acknowledged, _)| *acknowledged).max();
    println!("the last acknowledged write is {last:?}, of {acknowledged} labels");
    assert!(acknowledged > 0);
    sleep(REST);
    cluster.kill_all();
    for lost in [0, 2] {
        fs::remove_dir_all(cluster.hosts[lost].root()).unwrap();
    }
    // Nobody listens at the addresses of the others, which no election changes.
    let began = Instant::now();
    ends_with(&recover(&cluster, 1, &[]), REFUSED, &["--others-are-gone", "refuses connections"]);
    let took = began.elapsed();
    println!("refused in {} ms", took.as_millis());
    assert!(took < CLOSED_PATIENCE, "{took:?}");
    let output = recover(&cluster, 1, &["--others-are-gone", "-o", "json"]);
    ends_with(&output, 0, &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (found, recovered) = (&report["found"], &report["recovered"]);
    println!("{report:#}");
    let revision = |of: &serde_json::Value| of["revision"].as_u64().expect("there is a revision");
    // Each write has one of its own.
    assert!(revision(recovered) >= last.unwrap(), "{report:#}");
    assert!(revision(found) <= revision(recovered) && revision(found) > 0, "{report:#}");
    assert_eq!(recovered["incarnation"], 2);
    let mut before: Vec<_> = recovered["members_before"].as_array().unwrap().iter().collect();
    before.sort_by_key(|id| id.as_str().map(str::to_owned));
    let mut expected = [&ids[0], &ids[2]];
    expected.sort();
    assert_eq!(before, expected);
    assert_eq!(recovered["nodes_with_keys"].as_array().unwrap().len(), 0, "no data are encrypted");

    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    let nodes = cluster.wait_nodes("the nodes", |_| true);
    let record = nodes.iter().find(|node| node["node_id"] == ids[0].as_str()).expect("the written node is there");
    for (number, (acknowledged, sent)) in (0..).zip(written) {
        let found = record["labels"][label(number)].as_str().map_or(0, |value| value.parse().unwrap());
        assert!((acknowledged..=sent).contains(&found), "label {number}: {found} of {acknowledged} to {sent}");
    }
}
