//! A cluster that has lost its quorum for good is made one again of what one member has left (`polis cluster recover`).

#![forbid(unsafe_code)]

#[cfg(feature = "fault-points")]
mod crashes;
mod cut_off;
mod encrypted;
mod writes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::cluster::health;
use polis_testkit::{Cluster, StorageSecurity};

/// What a survivor's disk does not know as committed is gone; after this time of rest it knows all (`cold-start.md`).
const REST: Duration = Duration::from_secs(3);

/// Exit code of what was refused.
const REFUSED: i32 = 3;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}

/// Runs `polis cluster recover`.
fn recover(cluster: &Cluster, node: usize, more: &[&str]) -> Output {
    recover_command(cluster, node, more).output().expect("polis can be started")
}

fn recover_command(cluster: &Cluster, node: usize, more: &[&str]) -> Command {
    let mut polis = Command::new(binary());
    polis.args(["cluster", "recover", "--yes", "--root"]).arg(cluster.hosts[node].root());
    polis.arg("--etcd").arg(polis_testkit::etcd::binary()).args(more).stdin(Stdio::null());
    polis
}

/// A cluster that is going to be founded on data that are not encrypted, so that a test sees its files.
fn plain(count: usize) -> Cluster {
    let mut cluster = Cluster::on_loopback(binary(), count);
    cluster.storage = StorageSecurity::Insecure;
    cluster
}

#[track_caller]
fn ends_with(output: &Output, code: i32, parts: &[&str]) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    text
}

/// Name and content of every file below a directory.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(contents(&path)) } else { all.push((path.clone(), fs::read(&path).unwrap())) }
    }
    all.sort();
    all
}

/// Writes what a later look finds.
fn write(cluster: &Cluster, node: &str, value: &str) {
    let _ = cluster.polis(&format!("node set label {node} test={value}")).succeeds();
}

fn written(cluster: &Cluster, node: &str) -> Option<String> {
    let nodes = cluster.wait_nodes("the nodes", |_| true);
    let found = nodes.iter().find(|found| found["node_id"] == node)?;
    found["labels"]["test"].as_str().map(str::to_owned)
}

#[test]
fn two_of_three_are_destroyed_and_the_cluster_grows_to_three_again() {
    let mut cluster = plain(5);
    cluster.grow_to(3);
    let ids = [0, 1, 2].map(|number| cluster.id(number));
    write(&cluster, &ids[2], "kept");
    ends_with(&recover(&cluster, 1, &[]), 1, &["stop the node first"]);
    sleep(REST);
    for number in 0..3 {
        cluster.kill(number);
    }
    for lost in [0, 2] {
        fs::remove_dir_all(cluster.hosts[lost].root()).unwrap();
    }
    let data = cluster.hosts[1].root().join("data/etcd/data");
    let before = contents(&data);
    ends_with(&recover(&cluster, 1, &[]), REFUSED, &["--others-are-gone", "second cluster"]);
    assert!(contents(&data) == before, "a refusal changes nothing");

    let began = Instant::now();
    let said =
        ends_with(&recover(&cluster, 1, &["--others-are-gone"]), 0, &["revision", "incarnation 2", &ids[0], &ids[2]]);
    println!("recovered in {} ms\n{said}", began.elapsed().as_millis());
    let kept = cluster.hosts[1].root().join("data/etcd/removed-1");
    let moved: Vec<_> =
        before.iter().map(|(path, bytes)| (kept.join(path.strip_prefix(&data).unwrap()), bytes.clone())).collect();
    assert!(contents(&kept) == moved, "the data of before are kept as they were");

    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(written(&cluster, &ids[2]).as_deref(), Some("kept"));
    let members = cluster.wait_members("the survivor alone", |members| members.len() == 1);
    assert_eq!(members[0]["node_id"], ids[1].as_str());
    for lost in [&ids[0], &ids[2]] {
        let _ = cluster.polis(&format!("node delete {lost} --bypass-not-decommissioned --bypass-has-roles")).succeeds();
    }
    for number in [3, 4] {
        cluster.register(number);
        cluster.approve(number);
        cluster.make_member(number);
    }
    let _ = cluster.wait_members("three members", |members| {
        members.len() == 3 && members.iter().all(|member| member["learner"] == false)
    });
    // Without the survivor the two others have the quorum.
    let third = cluster.id(3);
    cluster.kill(1);
    write(&cluster, &third, "after");
}

#[test]
fn a_survivor_with_old_data_joins_again() {
    let mut cluster = plain(3);
    cluster.grow_to(3);
    let ids = [0, 1, 2].map(|number| cluster.id(number));
    sleep(REST);
    for number in 0..3 {
        cluster.kill(number);
    }
    ends_with(&recover(&cluster, 0, &["--others-are-gone"]), 0, &[]);
    cluster.start(0);
    let _ = cluster.node(0).wait_state(NodeState::Running);
    // It has its old membership, and two of three would be a quorum; alone it is none, and it hears of what has become of it.
    cluster.start(1);
    let _ = cluster.wait_nodes("the second is healthy", |nodes| health(nodes, &ids[1]) == Some("HEALTHY"));
    let status =
        cluster.node(1).wait("no consensus role", |status| !status.roles.iter().any(|role| role.contains("Consensus")));
    println!("{status:?}");
    cluster.make_member(1);
    let members = cluster.wait_members("two members", |members| members.len() == 2);
    assert!(members.iter().all(|member| member["learner"] == false), "{members:?}");
}

#[test]
fn a_cluster_that_lives_is_not_left() {
    let mut cluster = plain(3);
    cluster.grow_to(3);
    cluster.kill(0);
    let data = cluster.hosts[0].root().join("data/etcd/data");
    let before = contents(&data);
    let leader = cluster.hosts[1..].iter().map(|host| host.ip().to_string()).collect::<Vec<_>>();
    let text = ends_with(&recover(&cluster, 0, &["--others-are-gone"]), REFUSED, &["lives"]);
    assert!(leader.iter().any(|address| text.contains(address)), "{text}");
    assert!(contents(&data) == before, "a refusal changes nothing");
    cluster.start(0);
    let _ = cluster.node(0).wait_state(NodeState::Running);
}

#[test]
fn a_node_that_the_cluster_has_deleted_is_none_of_it_any_more() {
    let mut cluster = plain(3);
    cluster.grow_to(3);
    let id = cluster.id(0);
    cluster.kill(0);
    let _ = cluster.polis(&format!("node delete {id} --bypass-not-decommissioned --bypass-has-roles")).succeeds();
    let data = cluster.hosts[0].root().join("data/etcd/data");
    let before = contents(&data);
    let began = Instant::now();
    ends_with(&recover(&cluster, 0, &["--others-are-gone"]), REFUSED, &["it was deleted", "polis node reset"]);
    println!("refused in {} ms", began.elapsed().as_millis());
    assert!(contents(&data) == before, "a refusal changes nothing");
}

#[test]
fn two_that_are_recovered_apart_from_each_other_do_not_mix() {
    let mut cluster = plain(2);
    cluster.grow();
    let ids = [0, 1].map(|number| cluster.id(number));
    sleep(REST);
    cluster.kill_all();
    for number in [0, 1] {
        ends_with(&recover(&cluster, number, &["--others-are-gone"]), 0, &["incarnation 2"]);
    }
    // In each round both begin without a quorum, when they would go over to another side.
    for round in 0..2 {
        for number in [0, 1] {
            cluster.start(number);
        }
        for number in [0, 1] {
            let id = ids[number].clone();
            let _ = cluster.node(number).wait("a leader of its own", |status| {
                let leader = status.contact.as_ref().and_then(|contact| contact.leader);
                leader.is_some_and(|leader| leader.to_string() == id)
            });
        }
        let ask = |cluster: &Cluster, number: usize, line: &str| {
            cluster.polis(&format!("{line} --endpoints {}", cluster.hosts[number].ip())).succeeds()
        };
        for number in [0, 1] {
            let _ = ask(&cluster, number, &format!("node set label {} side=s{number}r{round}", ids[0]));
        }
        for number in [0, 1] {
            let _ = cluster.node(number).wait_condition("cluster-divided");
            let nodes = ask(&cluster, number, "node list -o json").json();
            let node = nodes.as_array().unwrap().iter().find(|node| node["node_id"] == ids[0].as_str()).unwrap();
            assert_eq!(node["labels"]["side"], format!("s{number}r{round}"));
        }
        cluster.kill_all();
    }
}
