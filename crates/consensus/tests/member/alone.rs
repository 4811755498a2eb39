//! One member: start, restart, death, half-done states.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use polis_consensus::{KvError, Pace, PeerPki, PeerPkiError, Phase, Start, Timing};
use polis_identity::NodeKey;
use tokio::time::timeout;

use crate::node::{Node, PATIENCE, free_address};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_starts_from_nothing_to_its_first_write_and_keeps_it() {
    let mut node = Node::new();
    let began = Instant::now();
    node.found();
    let status = node.ready().await;
    let ready = began.elapsed();
    let curator = node.consensus().namespaced(&["curator"]).unwrap();
    curator.put("test/put", "/first", "one").await.unwrap();
    println!("first start: ready after {} ms, first put after {} ms", ready.as_millis(), began.elapsed().as_millis());
    assert!(status.is_leader() && !status.is_learner && status.members.len() == 1, "{status:?}");
    let own = status.own_member().unwrap();
    assert_eq!(own.node_id, Some(polis_identity::NodeId::of(&node.public_key())));
    assert_eq!(own.address, Some(node.identity_address()));
    node.stop().await;

    let began = Instant::now();
    node.restart();
    let again = node.ready().await;
    println!("second start: ready after {} ms", began.elapsed().as_millis());
    let curator = node.consensus().namespaced(&["curator"]).unwrap();
    assert_eq!(curator.get("/first").await.unwrap().unwrap().value, b"one");
    assert_eq!(again.member_id, status.member_id);
    assert_eq!(node.harness().conditions().snapshot(), []);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_are_below_the_root_also_when_that_is_a_relative_path() {
    let mut node = Node::with_relative_root();
    node.found();
    node.ready().await;
    node.consensus().kv_root().put("test/put", "key", "value").await.unwrap();
    assert!(node.layout.data.etcd.data.full_path().join("member/wal").is_dir());
    node.stop().await;
    // A start empties what is ephemeral.
    node.layout.prepare_start().unwrap();
    node.restart();
    node.ready().await;
    assert_eq!(node.consensus().kv_root().get("key").await.unwrap().unwrap().value, b"value");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_etcd_is_started_again_with_everything_acknowledged() {
    let mut node = Node::new();
    node.found();
    let before = node.ready().await;
    let root = node.consensus().kv_root();
    root.put("test/put", "key", "value").await.unwrap();
    node.kill_etcd();
    let after = node.wait_for("restarted", |status| status.is_ready() && status.process_id != before.process_id).await;
    assert_eq!(after.member_id, before.member_id);
    assert_eq!(root.get("key").await.unwrap().unwrap().value, b"value");
    // A death after it was ready is no fault of its start.
    assert_eq!(node.harness().conditions().snapshot(), []);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_etcd_of_a_stopped_member_stops_in_order_and_soon() {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    let log = node.harness().log_tree().clone();
    let began = Instant::now();
    node.stop().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let name = polis_logtree::DistinguishedName::parse("root.consensus.etcd").unwrap();
    let lines = log.read(&name, polis_logtree::ReadOptions::default()).unwrap().backlog;
    assert!(lines.iter().any(|entry| entry.text().contains("closed etcd server")), "etcd was told to end");
    let strange: Vec<_> = lines.iter().filter(|entry| entry.severity().is_none()).map(|entry| entry.text()).collect();
    assert!(strange.is_empty(), "lines of etcd that are not understood: {strange:?}");
    assert!(!node.layout.ephemeral.consensus.client_socket.full_path().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_done_states_are_no_hindrance() {
    let mut node = Node::new();
    // Killed after the credentials were stored and before etcd ran: they are used.
    let pki = PeerPki::load_or_found(&node.layout.data.etcd.credentials, &node.key).unwrap();
    // Killed while the files of a start were written: torn ones, a stale socket, a stale temporary.
    let ephemeral = node.layout.ephemeral.consensus.directory.full_path();
    fs::write(ephemeral.join("peer-key.pem"), "-----BEGIN PRIV").unwrap();
    fs::set_permissions(ephemeral.join("peer-key.pem"), fs::Permissions::from_mode(0o400)).unwrap();
    let socket = ephemeral.join("client.sock:0");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    // Killed after etcd made its directories and before its log.
    fs::create_dir_all(node.layout.data.etcd.data.full_path().join("member/snap")).unwrap();
    fs::create_dir_all(node.layout.data.etcd.data.full_path().join("member/wal.tmp")).unwrap();
    node.found();
    let first = node.ready().await;
    node.consensus().kv_root().put("test/put", "key", "value").await.unwrap();
    let mode = fs::metadata(ephemeral.join("peer-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    node.stop().await;

    // The same first start again, with the data that are there: nothing is founded anew.
    fs::remove_dir_all(ephemeral.parent().unwrap()).unwrap();
    node.found();
    let second = node.ready().await;
    assert_eq!(second.member_id, first.member_id);
    assert_eq!(node.consensus().kv_root().get("key").await.unwrap().unwrap().value, b"value");
    let again = PeerPki::load_or_found(&node.layout.data.etcd.credentials, &node.key).unwrap();
    assert_eq!(again.certificate(), pki.certificate());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_data_is_not_started() {
    // Whichever of the directories is the one that is gone.
    for gone in ["member/wal", "member", ""] {
        let mut node = Node::new();
        PeerPki::load_or_found(&node.layout.data.etcd.credentials, &node.key).unwrap();
        let data = node.layout.data.etcd.data.full_path();
        fs::create_dir_all(data.join("member/wal")).unwrap();
        fs::remove_dir_all(data.join(gone)).unwrap();
        node.restart();
        let message = node.wait_condition("consensus-data-missing").await;
        assert!(message.contains(&*data.to_string_lossy()), "{gone:?}: {message}");
        assert_eq!(node.consensus().status().borrow().phase, Phase::Down);
        node.stop().await;
        assert!(!data.join("member/wal").exists(), "{gone:?}: nothing was founded");
    }
}

#[test]
fn the_credentials_of_another_node_are_refused_and_left_alone() {
    let node = Node::new();
    let stored = &node.layout.data.etcd.credentials;
    PeerPki::load_or_found(stored, &node.key).unwrap();
    let before = fs::read(stored.full_path()).unwrap();
    let error = PeerPki::load_or_found(stored, &NodeKey::generate()).err().unwrap();
    assert!(matches!(error, PeerPkiError::OtherNode { .. }), "{error:?}");
    fs::write(stored.full_path(), &before[..before.len() / 2]).unwrap();
    let error = PeerPki::load_or_found(stored, &node.key).err().unwrap();
    assert!(matches!(error, PeerPkiError::Load { .. }), "{error:?}");
    assert_eq!(fs::read(stored.full_path()).unwrap(), before[..before.len() / 2]);
}

#[test]
fn the_authority_goes_with_its_key() {
    let node = Node::new();
    let stored = &node.layout.data.etcd.credentials;
    let pki = PeerPki::load_or_found(stored, &node.key).unwrap();
    assert!(pki.authority().is_some());
    pki.without_authority_key().store(stored, "test/store").unwrap();
    let pki = PeerPki::load_or_found(stored, &node.key).unwrap();
    assert!(pki.authority().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_timing_or_address_is_taken_by_a_restart_of_etcd_alone() {
    let mut node = Node::new();
    node.found();
    let first = node.ready().await;
    let root = node.consensus().kv_root();
    root.put("test/put", "key", "value").await.unwrap();

    node.consensus().set_timing(Timing::Network(Pace::Near));
    let second = node
        .wait_for("restarted with network timing", |status| {
            status.is_ready() && status.timing == Timing::Network(Pace::Near) && status.process_id != first.process_id
        })
        .await;
    let command = fs::read_to_string(format!("/proc/{}/cmdline", second.process_id.unwrap())).unwrap();
    assert!(command.contains("--election-timeout=250"), "{command}");

    node.address.send_replace(Some(free_address()));
    let third =
        node.wait_for("at its new address", |status| status.is_ready() && status.process_id != second.process_id).await;
    let command = fs::read_to_string(format!("/proc/{}/cmdline", third.process_id.unwrap())).unwrap();
    assert!(command.contains(&format!("--listen-peer-urls=https://{}:7834", node.ip())), "{command}");
    assert_eq!(third.member_id, first.member_id);
    assert_eq!(root.get("key").await.unwrap().unwrap().value, b"value");
    // It was no death: the runnable went on.
    let dump = node.harness().observer().dump();
    assert!(dump.iter().all(|report| report.restarts == 0), "{dump:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_as_unavailable_while_there_is_no_etcd() {
    let mut node = Node::new();
    node.address.send_replace(None);
    node.found();
    let root = node.consensus().kv_root();
    assert!(matches!(root.put("test/put", "key", "value").await, Err(KvError::Unavailable { .. })));
    assert!(matches!(root.get("key").await, Err(KvError::Unavailable { .. })));
    // An address that comes later is waited for.
    node.address.send_replace(Some(free_address()));
    node.ready().await;
    root.put("test/put", "key", "value").await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_whose_credentials_came_from_elsewhere_starts_too() {
    let mut node = Node::new();
    let authority = polis_identity::CertificateAuthority::generate(polis_identity::PEER_AUTHORITY_NAME);
    let pki = PeerPki::issued(
        authority.certificate().clone(),
        authority.certificate_revocation_list(1, &[]),
        authority.issue_peer(&node.public_key()),
        &node.key,
    );
    node.start(pki, Start::Found);
    timeout(PATIENCE, node.consensus().ready()).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_the_last_to_be_killed_when_memory_is_short_where_that_may_be_said() {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    let score = |process: &str| fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    let may_lower =
        fs::write("/proc/self/oom_score_adj", format!("{}", score("self").trim().parse::<i16>().unwrap() - 1));
    let expected = if may_lower.is_ok() { "-900\n".to_owned() } else { score("self") };
    assert_eq!(score(&node.process_id().to_string()), expected);
    node.stop().await;
}
