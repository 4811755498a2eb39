//! The same on encrypted data: the key comes from the journal, or from the blob and the words, and the cluster of one needs nobody.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::host::PATIENCE;
use polis_testkit::node_data::journal;
use polis_testkit::snapshot::Snapshot;
use polis_testkit::{Cluster, StorageSecurity, mounts, processes};

use crate::{REFUSED, REST, binary, ends_with, recover, write, written};

/// What a node keeps of itself, on its ESP and of its data.
const KEPT: [&str; 2] = ["esp/polis", "encrypted"];

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A cluster that is going to be founded on encrypted data, with so many places.
fn encrypted(count: usize) -> Cluster {
    let mut cluster = Cluster::on_loopback(binary(), count);
    cluster.storage = StorageSecurity::Authenticated;
    cluster
}

/// Makes a recovery key; returns the files with its words and its public half.
fn key(cluster: &Cluster, name: &str) -> [String; 2] {
    let [words, public] = ["words", "public"].map(|half| {
        let file = cluster.directory().join(format!("{name}-{half}"));
        file.display().to_string()
    });
    let _ = cluster.polis_with("recovery-key create", &["--words-to", &words, "-o", &public]).succeeds();
    [words, public]
}

/// Has the cluster that is going to be founded know this key from its birth.
fn found_with(cluster: &Cluster, public: &str) {
    let _ = cluster.polis("owner create").succeeds();
    let owner = cluster.configuration().join("owner-key.pem").display().to_string();
    let other = cluster.directory().join("other.pb").display().to_string();
    // Leaves polis.pb where the parameters of the cluster are going to be.
    let arguments = ["--owner-key", owner.as_str(), "--recovery-key", public, "-o", &other];
    let _ = cluster.polis_with("parameters bootstrap", &arguments).succeeds();
}

#[track_caller]
fn wait(what: &str, wanted: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !wanted() {
        assert!(Instant::now() < deadline, "it did not come to: {what}");
        sleep(LOOK_PAUSE);
    }
}

fn wait_blobs(cluster: &Cluster) {
    wait("every member has sealed its keys", || {
        let run = cluster.polis("cluster status -o json");
        run.code == Some(0)
            && run.json()["members"].as_array().unwrap().iter().all(|member| member["recovery_blob"] == true)
    });
}

fn has_copy(cluster: &Cluster, node: usize) -> bool {
    journal(&cluster.hosts[node].root()).is_some_and(|found| found.cluster_unlock_key.is_some())
}

/// Waits until the members keep no copies of their keys, as the others would open them.
fn wait_split(cluster: &Cluster, nodes: &[usize]) {
    wait("no member keeps a copy of its key", || nodes.iter().all(|node| !has_copy(cluster, *node)));
}

/// Ends all, and destroys these.
pub(crate) fn lose(cluster: &mut Cluster, lost: &[usize]) {
    sleep(REST);
    cluster.kill_all();
    for host in &cluster.hosts {
        processes::wait_until_gone(host.directory()).unwrap_or_else(|left| panic!("{left}"));
    }
    for node in lost {
        fs::remove_dir_all(cluster.hosts[*node].root()).unwrap();
    }
}

fn kept(root: &Path) -> [Snapshot; 2] {
    KEPT.map(|name| Snapshot::of(&root.join(name)))
}

/// Nothing of the node is open any more.
#[track_caller]
fn is_closed(root: &Path) {
    assert!(mounts::below(root).is_empty(), "{:?}", mounts::below(root));
}

#[test]
fn two_of_three_are_destroyed_and_the_words_bring_the_third_back() {
    let mut cluster = encrypted(5);
    let [words, public] = key(&cluster, "own");
    let [foreign, _] = key(&cluster, "foreign");
    found_with(&cluster, &public);
    cluster.grow_to(3);
    let ids = [0, 1, 2].map(|number| cluster.id(number));
    write(&cluster, &ids[1], "kept");
    wait_split(&cluster, &[0, 1, 2]);
    wait_blobs(&cluster);
    lose(&mut cluster, &[0, 2]);

    let root = cluster.hosts[1].root();
    let before = kept(&root);
    let unknown = cluster.directory().join("unknown").display().to_string();
    // The words are numbered.
    let text = fs::read_to_string(&words).unwrap();
    let mistyped: Vec<String> = text
        .split_whitespace()
        .enumerate()
        .map(|(at, part)| format!("{part}{}", if at == 1 { "x" } else { "" }))
        .collect();
    fs::write(&unknown, mistyped.join(" ")).unwrap();
    let gone = "--others-are-gone";
    for (arguments, parts) in [
        (&[gone][..], &["one half of their key is not on this machine", "--recovery", "start them"][..]),
        (&[gone, "--recovery", &foreign], &["the recovery key does not open this node", "sealed to"]),
        (&[gone, "--recovery", &unknown], &["word 1"]),
    ] {
        let output = recover(&cluster, 1, arguments);
        let code = output.status.code().unwrap();
        ends_with(&output, code, parts);
        assert_ne!(code, 0);
        is_closed(&root);
        before.iter().for_each(|before| assert_eq!(before.changes(), [""; 0]));
    }
    ends_with(&recover(&cluster, 1, &["--recovery", &words]), REFUSED, &["--others-are-gone"]);
    is_closed(&root);
    assert!(!has_copy(&cluster, 1), "a refusal changes nothing");

    let began = Instant::now();
    let said = recover(&cluster, 1, &[gone, "--recovery", &words]);
    ends_with(&said, 0, &["incarnation 2", &ids[0], &ids[2]]);
    println!("recovered in {} ms", began.elapsed().as_millis());
    is_closed(&root);
    assert!(has_copy(&cluster, 1), "who is alone opens its data by itself");

    // By itself, twice: before and after its keys came into the order of one that is alone.
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(written(&cluster, &ids[1]).as_deref(), Some("kept"));
    let members = cluster.wait_members("the survivor alone", |members| members.len() == 1);
    assert_eq!(members[0]["node_id"], ids[1].as_str());
    write(&cluster, &ids[1], "alone");
    wait_blobs(&cluster);
    cluster.kill(1);
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(written(&cluster, &ids[1]).as_deref(), Some("alone"));

    for lost in [&ids[0], &ids[2]] {
        let _ = cluster.polis(&format!("node delete {lost} --bypass-not-decommissioned --bypass-has-roles")).succeeds();
    }
    for number in [3, 4] {
        cluster.register(number);
        cluster.approve(number);
        cluster.make_member(number);
    }
    wait_split(&cluster, &[1, 3, 4]);
    write(&cluster, &ids[1], "three");
    lose(&mut cluster, &[]);
    for number in [1, 3, 4] {
        cluster.start(number);
    }
    for number in [1, 3, 4] {
        let _ = cluster.node(number).wait_state(NodeState::Running);
    }
    assert_eq!(written(&cluster, &ids[1]).as_deref(), Some("three"));
}

#[test]
fn one_of_two_has_its_key_beside_its_own_half_and_needs_no_words() {
    let mut cluster = encrypted(2);
    cluster.grow();
    let id = cluster.id(1);
    write(&cluster, &id, "kept");
    lose(&mut cluster, &[0]);
    ends_with(&recover(&cluster, 1, &["--others-are-gone"]), 0, &["incarnation 2"]);
    is_closed(&cluster.hosts[1].root());
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(written(&cluster, &id).as_deref(), Some("kept"));
    write(&cluster, &id, "alone");
}
