//! A snapshot on a machine without a node: what a cluster is made of when none of its machines is left.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use polis_control::NodeState;
use polis_testkit::cluster::health;
use polis_testkit::node_data::unlock_keys;
use polis_testkit::{Cluster, StorageSecurity, processes};

use crate::{binary, ends_with, label, labelled, set_recovery_key};

/// Exit code of what was refused.
const REFUSED: i32 = 3;

/// Name of the condition of a node that the cluster has no record of.
const UNKNOWN: &str = "unknown-to-cluster";

/// Signal that ends a process at a fault point.
const KILL: i32 = 9;

/// Where the restoration is killed, and whether there is a journal by then that a start reads.
const DEATHS: [(&str, bool); 7] = [
    ("restore/intent/begin", false),
    ("restore/intent/created", false),
    ("restore/intent/done", true),
    ("restore/credentials/done", true),
    ("restore/members/done", true),
    ("recover/swap/done", true),
    ("restore/enrolled/begin", true),
];

/// The command that restores the snapshot at the root of a host, which has no node.
fn command(cluster: &Cluster, host: usize, snapshot: &Path, words: Option<&Path>) -> Command {
    let mut polis = Command::new(binary());
    polis.args(["cluster", "recover", "--yes", "--others-are-gone", "--root"]).arg(cluster.hosts[host].root());
    polis.arg("--etcd").arg(polis_testkit::etcd::binary()).arg("--snapshot").arg(snapshot).stdin(Stdio::null());
    if let Some(words) = words {
        polis.arg("--recovery").arg(words);
    }
    polis
}

fn run(mut command: Command) -> Output {
    command.output().expect("polis can be started")
}

/// Ends all nodes, and destroys these.
fn lose(cluster: &mut Cluster, lost: &[usize]) {
    cluster.kill_all();
    for host in &cluster.hosts {
        processes::wait_until_gone(host.directory()).unwrap_or_else(|left| panic!("{left}"));
    }
    for host in lost {
        fs::remove_dir_all(cluster.hosts[*host].root()).unwrap();
    }
}

/// Starts the restored node.
fn start(cluster: &mut Cluster, host: usize) -> String {
    cluster.start(host);
    let _ = cluster.node(host).wait_state(NodeState::Running);
    cluster.id(host)
}

#[test]
fn a_cluster_is_restored_where_there_was_nothing() {
    let mut cluster = Cluster::on_loopback(binary(), 6);
    cluster.grow_to(3);
    let old = [0, 1, 2].map(|number| cluster.id(number));
    let words = set_recovery_key(&cluster);
    label(&cluster, &old[1], "saved");
    let file = cluster.directory().join("snapshot");
    let _ = cluster.polis(&format!("cluster snapshot save {}", file.display())).succeeds();
    label(&cluster, &old[1], "later");
    lose(&mut cluster, &[0, 1, 2]);

    let root = cluster.hosts[3].root();
    let cut = cluster.directory().join("cut");
    let whole = fs::read(&file).unwrap();
    fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let other = cluster.directory().join("other-words");
    let public = cluster.directory().join("other.pem");
    let _ = cluster
        .polis(&format!("recovery-key create --words-to {} -o {}", other.display(), public.display()))
        .succeeds();
    ends_with(&run(command(&cluster, 3, &file, None)), 1, &["encrypted to the recovery key", "--recovery"]);
    ends_with(&run(command(&cluster, 3, &file, Some(&other))), 1, &["the words of the recovery key"]);
    ends_with(&run(command(&cluster, 3, &cut, Some(&words))), 1, &["cut short"]);
    let mut unsure = Command::new(binary());
    unsure.args(["cluster", "recover", "--yes", "--root"]).arg(&root).arg("--etcd").arg(polis_testkit::etcd::binary());
    unsure.arg("--snapshot").arg(&file).arg("--recovery").arg(&words).stdin(Stdio::null());
    ends_with(&run(unsure), REFUSED, &["--others-are-gone", "second cluster"]);
    assert!(!root.exists(), "what is refused makes nothing");
    fs::create_dir_all(root.join("data/mine")).unwrap();
    fs::write(root.join("data/mine/letters"), "mine").unwrap();
    ends_with(&run(command(&cluster, 3, &file, Some(&words))), REFUSED, &["is not empty", "data/mine"]);
    assert_eq!(fs::read(root.join("data/mine/letters")).unwrap(), b"mine");
    fs::remove_dir_all(&root).unwrap();

    for (point, has_journal) in DEATHS {
        let mut killed = command(&cluster, 3, &file, Some(&words));
        let died = run({
            killed.env("POLIS_FAULT", point);
            killed
        });
        assert_eq!(died.status.signal(), Some(KILL), "{point}: {died:?}");
        if has_journal {
            let started = cluster.hosts[3].command().output().unwrap();
            ends_with(&started, 1, &["cut off before there was a node"]);
        }
    }
    let done = run(command(&cluster, 3, &file, Some(&words)));
    ends_with(&done, 0, &["incarnation 2", "revision", &old[0], &old[1], &old[2]]);
    ends_with(&run(command(&cluster, 3, &file, Some(&words))), REFUSED, &["has not run yet"]);

    let id = start(&mut cluster, 3);
    assert_eq!(labelled(&cluster, &old[1]), "saved");
    label(&cluster, &old[1], "written");
    assert_eq!(labelled(&cluster, &old[1]), "written");
    let members = cluster.wait_members("the new node alone", |members| members.len() == 1);
    assert_eq!(members[0]["node_id"], id.as_str());
    let nodes = cluster.wait_nodes("all nodes", |nodes| nodes.len() == 4);
    assert!(old.iter().all(|old| nodes.iter().any(|node| node["node_id"] == old.as_str())), "{nodes:?}");
    for old in &old {
        let _ = cluster.polis(&format!("node delete {old} --bypass-not-decommissioned")).succeeds();
    }
    for number in [4, 5] {
        cluster.register(number);
        cluster.approve(number);
        cluster.make_member(number);
    }
    let members = cluster.wait_members("three members", |members| members.len() == 3);
    assert!(members.iter().all(|member| member["learner"] == false), "{members:?}");
    // The restored node comes back like any other, also with the others.
    cluster.kill_all();
    for number in 3..6 {
        cluster.start(number);
    }
    let _ = cluster.node(3).wait_state(NodeState::Running);
    assert_eq!(cluster.id(3), id);
    label(&cluster, &id, "again");
}

#[test]
fn a_node_that_is_younger_than_the_snapshot_says_so_and_may_register_again() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.found();
    let founder = cluster.id(0);
    let file = cluster.directory().join("snapshot");
    let _ = cluster.polis(&format!("cluster snapshot save {} --plaintext", file.display())).succeeds();
    cluster.register(1);
    cluster.approve(1);
    let young = cluster.id(1);
    cluster.wait_nodes("it is healthy", |nodes| health(nodes, &young) == Some("HEALTHY"));
    lose(&mut cluster, &[0]);

    ends_with(&run(command(&cluster, 2, &file, None)), 0, &["incarnation 2", &founder]);
    let id = start(&mut cluster, 2);
    // It knows the founder's address only; where the cluster is now it is told.
    let host = cluster.hosts[1].root();
    let peer = format!("{id}={}", cluster.hosts[2].ip());
    let told = Command::new(binary()).args(["node", "peers", "set", "--root"]).arg(&host).arg(peer).output().unwrap();
    ends_with(&told, 0, &[]);
    let journal = host.join("esp/polis/journal.0");
    cluster.start(1);
    // One whose data are locked asks for their key before it can ask for anything else, and says the same.
    let status = cluster.node(1).wait_condition(UNKNOWN);
    let condition = status.conditions.iter().find(|condition| condition.name == UNKNOWN).unwrap();
    assert!(condition.message.contains("restored from a state that is older"), "{condition:?}");
    assert!(journal.exists() && host.join("data").exists(), "nothing of it is destroyed");
    assert_eq!(cluster.wait_nodes("the nodes", |_| true).len(), 2);

    cluster.kill(1);
    processes::wait_until_gone(cluster.hosts[1].directory()).unwrap_or_else(|left| panic!("{left}"));
    let reset = Command::new(binary()).args(["node", "reset", "--yes", "--root"]).arg(&host).output().unwrap();
    ends_with(&reset, 0, &[]);
    cluster.register(1);
    cluster.approve(1);
    assert_ne!(cluster.id(1), young);
    cluster.make_member(1);
}

/// The state has the key of before, which opens nothing any more; the node has the one that does.
#[test]
fn a_snapshot_that_is_older_than_a_rekey_locks_nobody_out() {
    let mut cluster = Cluster::on_loopback(binary(), 1);
    cluster.storage = StorageSecurity::Authenticated;
    cluster.found();
    let id = cluster.id(0);
    label(&cluster, &id, "saved");
    let file = cluster.directory().join("snapshot");
    let _ = cluster.polis(&format!("cluster snapshot save {} --plaintext", file.display())).succeeds();
    let root = cluster.hosts[0].root();
    let before = cluster_keys(&root);
    let _ = cluster.polis(&format!("node rekey {id}")).succeeds();
    let after = cluster_keys(&root);
    assert_ne!(before, after);
    lose(&mut cluster, &[]);

    ends_with(&run(command(&cluster, 0, &file, None)), 0, &["incarnation 2"]);
    for _ in 0..2 {
        let _ = start(&mut cluster, 0);
        assert_eq!(labelled(&cluster, &id), "saved");
        lose(&mut cluster, &[]);
        assert_eq!(cluster_keys(&root), after, "the key that opens the data stays");
    }
}

/// What the node at this root has of the cluster's half of the key of its data.
fn cluster_keys(root: &Path) -> Vec<Vec<u8>> {
    unlock_keys(root).iter().map(|keys| keys.cluster.expose().to_vec()).collect()
}
