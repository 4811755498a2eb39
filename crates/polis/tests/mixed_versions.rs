//! Nodes of two versions in one cluster: they work together, and what one of them refuses it names, with the reason.
//!
//! The later version is the same binary, raised by an environment variable (`polis-version`): it calls itself one minor version
//! later, and writes its own files in the next version of their formats.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::cluster::health;
use polis_testkit::refusal::{Says, refused};
use polis_testkit::{Cluster, Host, damage, processes};
use serde_json::Value;

const BUILT: &str = env!("CARGO_PKG_VERSION");

/// How long a cluster may be without a leader.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where files lie that Polis writes; those of etcd are not among them, and only a consensus member has some in the last.
const PLACES: [&str; 4] = ["esp/polis", "data", "data/node", "data/etcd"];

/// The command that runs the node as a build of the next minor version.
fn raised(host: &Host) -> Command {
    let mut command = host.command();
    command.env("POLIS_TEST_RAISE", "1");
    command
}

/// What a raised build calls itself.
fn raised_version() -> String {
    let mut numbers = BUILT.split('.');
    let (major, minor, patch) = (numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap());
    format!("{major}.{}.{patch}", minor.parse::<u32>().unwrap() + 1)
}

/// All files of Polis' own below a root, with the version of their format.
fn versions_of_files(root: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for place in PLACES {
        for entry in fs::read_dir(root.join(place)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = if path.is_file() { fs::read(&path).unwrap() } else { continue };
            if bytes.starts_with(b"POLIS") {
                found.push((path, u32::from_be_bytes(bytes[8..12].try_into().unwrap())));
            }
        }
    }
    let lies_in = |place: &str| found.iter().any(|(path, _)| path.parent() == Some(&root.join(place)));
    assert!(PLACES[..3].iter().all(|place| lies_in(place)), "{found:?}");
    found
}

fn version_of(nodes: &[Value], id: &str) -> Option<String> {
    Some(nodes.iter().find(|node| node["node_id"] == id)?["version"].as_str()?.to_owned())
}

/// Id of the node that leads.
fn leader(cluster: &Cluster) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let run = cluster.polis("cluster status -o json --timeout 2s");
        if run.code == Some(0) {
            return run.json()["leader"].as_str().expect("there is a leader").to_owned();
        }
        assert!(Instant::now() < deadline, "nobody leads: {run:#?}");
    }
}

/// A role is given to node `number` and taken again by whoever leads; each time the node itself takes note of it.
#[track_caller]
fn roles_change(cluster: &mut Cluster, number: usize) {
    let id = cluster.id(number);
    for (verb, has) in [("add", true), ("remove", false)] {
        let _ = cluster.polis(&format!("node {verb} role KubernetesWorker {id}")).succeeds();
        let _ = cluster.node(number).wait("its role has changed", |status| {
            status.roles.iter().any(|role| role.as_str() == "KubernetesWorker") == has
        });
    }
}

#[track_caller]
fn healthy(cluster: &Cluster, count: usize) {
    let _ = cluster.wait_nodes("all nodes are healthy", |nodes| {
        nodes
            .iter()
            .filter(|node| health(nodes, node["node_id"].as_str().unwrap_or_default()) == Some("HEALTHY"))
            .count()
            == count
    });
}

/// A root that a raised node has used: the ordinary build names the file and leaves everything alone.
#[track_caller]
fn downgrade_is_refused(host: &Host, file: &Path, what: &str) {
    let says = Says {
        what,
        place: file,
        why: "has version 2 of its format, and this build knows version 1: it was written by a newer Polis",
        next: "run that version or a newer one",
    };
    refused(host, host.command(), 1, says);
}

#[test]
fn two_minor_versions_run_in_one_cluster_and_the_way_back_is_refused() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 4);
    let later = raised_version();
    cluster.found();
    let upgraded = cluster.id(0);

    // An update: the next version starts on a root of this one.
    let node = cluster.nodes[0].take().unwrap();
    assert!(node.stop().success());
    assert!(versions_of_files(&cluster.hosts[0].root()).iter().all(|(_, version)| *version == 1));
    cluster.nodes[0] = Some(cluster.hosts[0].spawn(raised(&cluster.hosts[0])));
    let _ = cluster.node(0).wait_state(NodeState::Running);

    // Nodes of the version before register with a leader of the next one, and vote.
    for number in [1, 2] {
        cluster.register(number);
        cluster.approve(number);
        cluster.make_member(number);
    }
    healthy(&cluster, 3);
    assert_eq!(leader(&cluster), upgraded);
    let older = cluster.id(1);
    roles_change(&mut cluster, 1);

    // Who runs what is to be seen by everybody who looks.
    let nodes = cluster.wait_nodes("the versions are known", |nodes| {
        version_of(nodes, &upgraded).as_ref() == Some(&later) && version_of(nodes, &older).as_deref() == Some(BUILT)
    });
    assert_eq!(nodes.iter().filter(|node| node["version"] == BUILT).count(), 2, "{nodes:?}");
    let table = cluster.polis("node list --columns node-id,version").succeeds().stdout;
    let line = table.lines().find(|line| line.starts_with(&upgraded)).unwrap_or_else(|| panic!("{table}"));
    assert!(line.ends_with(&later), "{table}");
    let report = cluster.polis("cluster health -o json").succeeds().json();
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == "versions").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(finding["level"], "warning", "{report}");
    let cause = finding["cause"].as_str().unwrap();
    assert!(
        cause.contains(&format!("{later} on {upgraded}")) && cause.contains(&format!("{BUILT} on 2 nodes")),
        "{cause}"
    );
    for (id, version) in [(&upgraded, &*later), (&older, BUILT)] {
        let metrics = cluster.polis(&format!("node metrics {id} node")).succeeds().stdout;
        assert!(metrics.contains(&format!("polis_build_info{{version=\"{version}\"}} 1")), "{metrics}");
    }

    // The leader of the later version dies; one of the earlier version leads, and a node of the later one registers with it.
    cluster.kill(0);
    assert_ne!(leader(&cluster), upgraded);
    roles_change(&mut cluster, 2);
    let parameters = cluster.register_parameters();
    let mut command = raised(&cluster.hosts[3]);
    command.arg("--parameters").arg(&parameters);
    cluster.nodes[3] = Some(cluster.hosts[3].spawn(command));
    cluster.approve(3);
    roles_change(&mut cluster, 3);

    // It comes back as what it is, and follows.
    cluster.nodes[0] = Some(cluster.hosts[0].spawn(raised(&cluster.hosts[0])));
    let _ = cluster.node(0).wait_contact();
    healthy(&cluster, 4);
    roles_change(&mut cluster, 0);

    // The way back. Of an updated root some files are of the later version, of a new one all are. Each has seen a newer member list since,
    // which is in the journal.
    for number in [0, 3] {
        let node = cluster.nodes[number].take().unwrap();
        assert!(node.stop().success());
        let host = &cluster.hosts[number];
        let root = host.root();
        processes::wait_until_gone(&root).unwrap_or_else(|left| panic!("{left}"));
        let files = versions_of_files(&root);
        let of_journal: Vec<u32> = damage::journal(&root)
            .iter()
            .filter_map(|path| Some(files.iter().find(|(file, _)| file == path)?.1))
            .collect();
        let newer: Vec<&PathBuf> = files.iter().filter(|(_, version)| *version == 2).map(|(path, _)| path).collect();
        println!("node {number}: {} of {} files are of version 2", newer.len(), files.len());
        assert_eq!(of_journal, [2, 2], "{files:?}");
        assert_eq!(newer.len() == files.len(), number == 3, "{files:?}");
        let (named, what) = (root.join("esp/polis/journal.0"), "the enrolment journal cannot be used");
        downgrade_is_refused(host, &named, what);
        // The version that may use it does, with nothing lost.
        cluster.nodes[number] = Some(host.spawn(raised(host)));
        let _ = cluster.node(number).wait_state(NodeState::Running);
    }
    healthy(&cluster, 4);
    roles_change(&mut cluster, 0);
    roles_change(&mut cluster, 3);
}
