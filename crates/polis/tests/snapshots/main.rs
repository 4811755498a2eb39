//! `polis cluster snapshot`, and `polis cluster recover --snapshot` with what it has saved.

#![forbid(unsafe_code)]

mod blank;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polis_control::NodeState;
use polis_testkit::Cluster;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}

/// Runs `polis cluster recover --snapshot FILE`.
fn recover(cluster: &Cluster, node: usize, snapshot: &Path, more: &[&str]) -> Output {
    let mut polis = Command::new(binary());
    polis.args(["cluster", "recover", "--yes", "--others-are-gone", "--root"]).arg(cluster.hosts[node].root());
    polis.arg("--etcd").arg(polis_testkit::etcd::binary()).arg("--snapshot").arg(snapshot);
    polis.args(more).stdin(Stdio::null());
    polis.output().expect("polis can be started")
}

#[track_caller]
fn ends_with(output: &Output, code: i32, parts: &[&str]) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

fn label(cluster: &Cluster, id: &str, value: &str) {
    let _ = cluster.polis(&format!("node set label {id} test={value}")).succeeds();
}

fn labelled(cluster: &Cluster, id: &str) -> String {
    let nodes = cluster.wait_nodes("the nodes", |_| true);
    let node = nodes.iter().find(|node| node["node_id"] == id).expect("the node is listed");
    node["labels"]["test"].as_str().unwrap_or_default().to_owned()
}

/// Makes a recovery key, and gives the cluster its public half. Returns the file of its words.
fn set_recovery_key(cluster: &Cluster) -> PathBuf {
    let (words, public) = (cluster.directory().join("words"), cluster.directory().join("recovery.pem"));
    let (words_text, public_text) = (words.to_str().unwrap(), public.to_str().unwrap());
    let _ = cluster.polis(&format!("recovery-key create --words-to {words_text} -o {public_text}")).succeeds();
    let _ = cluster.polis(&format!("cluster recovery-key set {public_text}")).succeeds();
    words
}

#[test]
fn a_snapshot_leaves_encrypted_and_a_cluster_is_made_of_it() {
    let mut cluster = Cluster::on_loopback(binary(), 2);
    cluster.grow_to(2);
    let id = cluster.id(0);
    let files = ["refused", "plain", "sealed"].map(|name| cluster.directory().join(name));
    let [refused, plain, sealed] = files.each_ref().map(|file| file.to_str().unwrap());
    let run = cluster.polis(&format!("cluster snapshot save {refused}"));
    assert!(run.code == Some(1) && run.stderr.contains("--plaintext"), "{run:?}");
    assert!(!files[0].exists());

    let run = cluster.polis(&format!("cluster snapshot save {plain} --plaintext")).succeeds();
    assert!(run.stdout.contains("whoever has the file has the cluster"), "{run:?}");
    assert_eq!(fs::metadata(plain).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(plain).unwrap();
    let run = cluster.polis(&format!("cluster snapshot save {plain} --plaintext"));
    assert!(run.code == Some(1) && run.stderr.contains("is there already"), "{run:?}");
    assert!(fs::read(plain).unwrap() == before);

    let words = set_recovery_key(&cluster);
    label(&cluster, &id, "saved");
    let run = cluster.polis(&format!("cluster snapshot save {sealed}")).succeeds();
    assert!(run.stdout.contains("encrypted to the recovery key"), "{run:?}");
    label(&cluster, &id, "later");
    // What has been saved is kept by its member as well.
    let members = cluster.polis("cluster snapshot status -o json").succeeds().json();
    let members = members.as_array().unwrap();
    assert_eq!(members.len(), 2);
    assert!(members.iter().any(|member| member["verified"] == true && member["age_seconds"].is_u64()), "{members:?}");
    let table = cluster.polis("cluster snapshot status").succeeds().stdout;
    assert!(table.contains("VERIFIED") && table.contains("restored for trial"), "{table}");
    let file = cluster.polis(&format!("cluster snapshot status {sealed} -o json")).succeeds().json();
    assert_eq!((&file["verified"], file["members"].as_array().map(Vec::len)), (&false.into(), Some(2)), "{file}");
    assert!(file["recovery_key"].is_string());
    let file = cluster.polis(&format!("cluster snapshot status {plain} -o json")).succeeds().json();
    assert!(file["verified"] == true && file["recovery_key"].is_null(), "{file}");

    let whole = fs::read(sealed).unwrap();
    let cut = cluster.directory().join("cut");
    fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let run = cluster.polis(&format!("cluster snapshot status {}", cut.display()));
    assert!(run.code == Some(1) && run.stderr.contains("cut short"), "{run:?}");
    cluster.kill_all();
    let key = ["--recovery", words.to_str().unwrap()];
    ends_with(&recover(&cluster, 1, &files[2], &[]), 1, &["encrypted to the recovery key", "--recovery"]);
    ends_with(&recover(&cluster, 1, &cut, &key), 1, &["cut short"]);
    ends_with(&recover(&cluster, 1, &files[2], &key), 0, &["incarnation 2", "revision"]);
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(labelled(&cluster, &id), "saved");
    let left = cluster.hosts[1].root().join("data/etcd");
    let names: Vec<_> = fs::read_dir(left).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_str().unwrap().starts_with("recover")), "{names:?}");
    // Once more, of the one that is not encrypted, and older.
    cluster.kill_all();
    ends_with(&recover(&cluster, 1, &files[1], &[]), 0, &["incarnation 3"]);
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    assert_eq!(labelled(&cluster, &id), "");
}

#[test]
fn a_snapshot_of_another_cluster_is_of_no_use() {
    let [mut cluster, mut other] = [(); 2].map(|()| Cluster::on_loopback(binary(), 1));
    cluster.found();
    other.found();
    let file = other.directory().join("other");
    let _ = other.polis(&format!("cluster snapshot save {} --plaintext", file.display())).succeeds();
    cluster.kill_all();
    ends_with(&recover(&cluster, 0, &file, &[]), 1, &["is of the cluster"]);
    cluster.start(0);
    let _ = cluster.node(0).wait_state(NodeState::Running);
}
