//! What is wrong is raised as a condition with the reason, and goes away when it is cured.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use etcd_client::{AlarmAction, AlarmType};
use polis_consensus::{EtcdBinary, KvError, PEER_PORT, Phase};
use rustix::process::Signal;

use crate::node::{Node, etcd, free_address};

/// A program that says that it is a good etcd, and otherwise runs `body`. `$etcd` is the real one.
pub(crate) fn fake_etcd(directory: &Path, version: &str, body: &str) -> PathBuf {
    let path = directory.join("fake-etcd");
    let real = etcd().path().display().to_string();
    let script = format!(
        "#!/bin/sh\netcd={real}\nif [ \"$1\" = --version ]; then echo 'etcd Version: {version}'; exit; fi\n{body}\n"
    );
    // Renamed into place, so that no program runs that is still being written.
    let new = directory.join("fake-etcd.new");
    fs::write(&new, script).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, &path).unwrap();
    path
}

fn node_with(version: &str, body: &str) -> Node {
    let mut node = Node::new();
    let path = fake_etcd(node.path(), version, body);
    node.etcd = EtcdBinary::find(Some(&path), None).unwrap();
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_is_waited_for() {
    let mut node = Node::new();
    let other = TcpListener::bind((node.ip(), PEER_PORT)).unwrap();
    node.found();
    let message = node.wait_condition("consensus-port-taken").await;
    assert!(message.contains(&SocketAddr::new(node.ip(), PEER_PORT).to_string()), "{message}");
    assert_eq!(node.consensus().status().borrow().phase, Phase::Down);
    drop(other);
    node.ready().await;
    node.wait_no_condition("consensus-port-taken").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_another_machine_is_waited_for() {
    let mut node = Node::new();
    node.address.send_replace(Some("192.0.2.1".parse().unwrap()));
    node.found();
    let message = node.wait_condition("consensus-address-not-here").await;
    assert!(message.contains("192.0.2.1"), "{message}");
    node.address.send_replace(Some(free_address()));
    node.ready().await;
    node.wait_no_condition("consensus-address-not-here").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_dies_at_start_is_named_with_its_last_words() {
    let complaint = r#"echo '{"level":"fatal","caller":"x.go:1","msg":"the moon is full"}' >&2; exit 3"#;
    let mut node = node_with("3.4.23", complaint);
    node.found();
    let message = node.wait_condition("consensus-etcd-exiting").await;
    assert!(message.contains("the moon is full") && message.contains('3'), "{message}");
    fake_etcd(node.path(), "3.4.23", "exec \"$etcd\" \"$@\"");
    node.ready().await;
    node.wait_no_condition("consensus-etcd-exiting").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_says_nothing_is_named_as_hanging_and_still_stops() {
    let mut node = node_with("3.4.23", "exec sleep 1000");
    node.found();
    node.wait_for("starting", |status| status.process_id.is_some()).await;
    let message = node.wait_condition("consensus-etcd-hanging").await;
    assert!(message.contains(&node.process_id().to_string()), "{message}");
    assert_eq!(node.consensus().status().borrow().phase, Phase::Hanging);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_hangs_while_it_runs_is_named_until_it_answers() {
    let mut node = Node::new();
    node.found();
    let before = node.ready().await;
    node.signal_etcd(Signal::STOP);
    node.wait_condition("consensus-etcd-hanging").await;
    assert_eq!(node.consensus().status().borrow().phase, Phase::Hanging);
    node.signal_etcd(Signal::CONT);
    let after = node.ready().await;
    assert_eq!(after.process_id, before.process_id, "it was left alone");
    node.wait_no_condition("consensus-etcd-hanging").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_or_missing_etcd_is_named_and_waited_for() {
    let mut node = node_with("3.5.1", "exit 1");
    let path = node.etcd.path().to_owned();
    node.found();
    let message = node.wait_condition("consensus-etcd-unusable").await;
    assert!(message.contains("3.5.1") && message.contains("lose committed data"), "{message}");
    assert!(!node.layout.data.etcd.data.full_path().join("member/wal").exists());
    fs::remove_file(&path).unwrap();
    node.wait_for_message("consensus-etcd-unusable", "scripts/setup run").await;
    fake_etcd(node.path(), "3.4.23", "exec \"$etcd\" \"$@\"");
    node.ready().await;
    node.wait_no_condition("consensus-etcd-unusable").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_named_until_etcd_is_ready_again() {
    let full = r#"echo '{"level":"fatal","msg":"failed to create WAL","error":"no space left on device"}' >&2; exit 1"#;
    let mut node = node_with("3.4.23", full);
    node.found();
    let message = node.wait_condition("consensus-disk-full").await;
    assert!(message.contains(&*node.layout.data.etcd.data.full_path().to_string_lossy()), "{message}");
    fake_etcd(node.path(), "3.4.23", "exec \"$etcd\" \"$@\"");
    node.ready().await;
    node.wait_no_condition("consensus-disk-full").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_at_its_quota_is_named_and_goes_on_once_there_is_room() {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    let root = node.consensus().kv_root();
    root.put("test/put", "key", "value").await.unwrap();
    let mut client = node.raw_client().await;
    client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    let message = node.wait_condition("consensus-disk-full").await;
    assert!(message.contains("quota"), "{message}");
    assert!(matches!(root.put("test/put", "key", "other").await, Err(KvError::NoSpace { .. })));
    assert_eq!(root.get("key").await.unwrap().unwrap().value, b"value");
    // There is room, so it is let go on by itself.
    node.wait_no_condition("consensus-disk-full").await;
    root.put("test/put", "key", "other").await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_of_a_start_end_with_the_member() {
    let mut node = Node::new();
    let _other = TcpListener::bind((node.ip(), PEER_PORT)).unwrap();
    node.found();
    node.wait_condition("consensus-port-taken").await;
    let conditions = node.harness().conditions().clone();
    node.stop().await;
    assert_eq!(conditions.snapshot(), []);
}
