//! Node management over real TLS on loopback.

use std::time::Duration;

use polis_control::{EnrolmentPhase, NodeState};
use polis_identity::{NodeId, NodeKey};
use polis_logtree::DistinguishedName;
use polis_manager::KeyOrderError;
use polis_proto::api::logs_request::{BacklogMode, StreamMode};
use polis_proto::api::node_management_client::NodeManagementClient;
use polis_proto::api::reboot_request::Type;
use polis_proto::logtree::log_entry::Kind;
use polis_proto::node_api::node_client::NodeClient;
use polis_rpc::{ClientIdentity, News, Trust, serve};
use polis_storage::Disk;
use polis_storage::journal::SealKind;
use polis_storage::simulation::SimulatedDisk;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;

use super::*;
use crate::loopback::{TestCluster, TestServer};

/// Longest wait for what surely comes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    cluster: TestCluster,
    server: TestServer,
    log_tree: LogTree,
    power: Power,
}

fn start() -> Running {
    let (cluster, log_tree, power) = (TestCluster::new(), LogTree::default(), Power::default());
    let status = NodeStatus {
        state: NodeState::Running,
        reason: None,
        node_id: None,
        cluster_id: None,
        phase: EnrolmentPhase::Enrolled,
        address: Some("192.0.2.1".into()),
        roles: vec![],
        cold_start: None,
        contact: None,
        consensus: None,
        storage: None,
        lock: None,
        snapshots: None,
        conditions: vec![],
        running: true,
    };
    let management = Management {
        log_tree: log_tree.clone(),
        status: Arc::new(move || status.clone()),
        power: power.clone(),
        keys: Arc::new(NoKeys),
        cluster: "00112233445566778899aabbccddeeff".parse().unwrap(),
        snapshots: no_snapshots(),
        machine: None,
    };
    let server = TestServer::start(&cluster, |context, listener, settings| {
        let routes = management.routes(&context);
        serve(context, listener, settings, routes)
    });
    Running { cluster, server, log_tree, power }
}

/// Snapshots of a node without a consensus member, which never run.
fn no_snapshots() -> SnapshotFiles {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::default());
    let settings = polis_snapshots::Settings {
        disk,
        member: watch::Sender::new(None).subscribe(),
        etcd: "/nowhere/etcd".into(),
        search_path: None,
        timing: polis_snapshots::Timing::default(),
    };
    SnapshotFiles::new(polis_snapshots::Snapshots::new(settings), watch::Sender::new(None).subscribe())
}

/// A node without keys.
struct NoKeys;

#[tonic::async_trait]
impl Keys for NoKeys {
    async fn rekey(&self) -> Result<(), KeyOrderError> {
        Err(KeyOrderError::NotEncrypted)
    }

    async fn reseal(&self) -> Result<SealKind, KeyOrderError> {
        Err(KeyOrderError::NotSealed)
    }
}

fn follow(backlog: BacklogMode) -> LogsRequest {
    LogsRequest {
        dn: "root.a".into(),
        backlog_mode: backlog.into(),
        stream_mode: StreamMode::Unbuffered.into(),
        ..LogsRequest::default()
    }
}

fn lines(message: &polis_proto::api::LogsResponse) -> Vec<String> {
    let entries = message.backlog_entries.iter().chain(&message.stream_entries);
    let text = |kind: &Kind| match kind {
        Kind::Leveled(leveled) => leveled.lines.join("|"),
        Kind::Raw(raw) => raw.data.clone(),
    };
    entries.map(|entry| text(entry.kind.as_ref().unwrap())).collect()
}

/// Connections of those who come for the first time and have not said anything yet; fewer than a node has seats for from one place.
const NEWCOMERS: usize = 32;

/// How long a connection must stay for it to be sure that nobody has closed it.
const QUIET: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_handshake_that_begins_ends_none_of_those_who_came_before() {
    let Running { cluster, server, .. } = start();
    let mut waiting = Vec::new();
    for _ in 0..NEWCOMERS {
        waiting.push(TcpStream::connect(server.address).await.unwrap());
    }
    // It is accepted after them, so that all of them have been seated when it is answered.
    let mut client = NodeClient::new(cluster.channel(&server, cluster.user("owner")));
    client.get_status(GetStatusRequest {}).await.unwrap();
    let ends = waiting.iter_mut().map(|stream| async { timeout(QUIET, stream.read_u8()).await });
    let closed = futures::future::join_all(ends).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(closed, 0, "of {NEWCOMERS}");
    server.finish().await;
}

#[tokio::test]
async fn an_operator_reads_the_log_and_follows_it_and_leaves_nothing_behind() {
    let Running { cluster, server, log_tree, .. } = start();
    let logger = log_tree.logger(&DistinguishedName::parse("root.a").unwrap());
    logger.info("before");
    let mut client = NodeManagementClient::new(cluster.channel(&server, cluster.user("owner")));
    let mut stream = client.logs(follow(BacklogMode::All)).await.unwrap().into_inner();
    let next = async |stream: &mut tonic::Streaming<_>| {
        lines(&timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap())
    };
    assert_eq!(next(&mut stream).await, ["before"]);
    logger.warning("after");
    assert_eq!(next(&mut stream).await, ["after"]);
    assert_eq!(log_tree.usage().readers, 1);

    // The client goes away while nothing is to be sent.
    drop(stream);
    let gone = async {
        while log_tree.usage().readers > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the node notices that its reader is gone");

    // The node stops while one follows.
    let mut stream = client.logs(follow(BacklogMode::Disable)).await.unwrap().into_inner();
    let (status, ()) = tokio::join!(timeout(PATIENCE, stream.message()), server.finish());
    assert_eq!(status.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_costs_the_others_nothing() {
    let Running { cluster, server, log_tree, .. } = start();
    let logger = log_tree.logger(&DistinguishedName::parse("root.a").unwrap());
    let mut client = NodeManagementClient::new(cluster.channel(&server, cluster.user("owner")));
    let mut slow = client.logs(follow(BacklogMode::Disable)).await.unwrap().into_inner();
    let mut quick = NodeManagementClient::new(cluster.channel(&server, cluster.user("owner")));
    let mut quick = quick.logs(follow(BacklogMode::Disable)).await.unwrap().into_inner();
    let long = "x".repeat(8_000);
    let mut written = 0;
    let mut read = 0;
    // More than all buffers on the way hold.
    while written < 4_000 {
        for _ in 0..20 {
            logger.info(&long);
            written += 1;
        }
        while read < written {
            let message = timeout(PATIENCE, quick.message()).await.unwrap().unwrap().unwrap();
            assert!(lines(&message).iter().all(|line| *line == long), "the quick one misses nothing");
            read += message.stream_entries.len();
        }
    }
    let (mut entries, mut missed) = (0, 0);
    while entries + missed < written {
        let message = timeout(PATIENCE, slow.message()).await.unwrap().unwrap().unwrap();
        for line in lines(&message) {
            match line.strip_prefix('[').and_then(|line| line.split_once(" entries are missing here")) {
                Some((count, _)) => missed += count.parse::<usize>().unwrap(),
                None => entries += 1,
            }
        }
    }
    assert_eq!(entries + missed, written, "what is missing is counted");
    assert!(missed > 0, "{entries} entries fit on the way");
    server.finish().await;
}

#[tokio::test]
async fn each_call_is_for_those_who_may() {
    let Running { cluster, server, power, .. } = start();
    let node = cluster.node();
    let ephemeral = ClientIdentity::ephemeral(&NodeKey::generate());
    let table = [
        (cluster.user("owner"), Ok(()), Ok(()), Ok(())),
        (node.client_identity(), Err(Code::PermissionDenied), Err(Code::PermissionDenied), Ok(())),
        (cluster.user("guest"), Err(Code::PermissionDenied), Err(Code::PermissionDenied), Err(Code::PermissionDenied)),
        (ephemeral, Err(Code::Unauthenticated), Err(Code::Unauthenticated), Err(Code::Unauthenticated)),
        (
            ClientIdentity::anonymous(),
            Err(Code::Unauthenticated),
            Err(Code::Unauthenticated),
            Err(Code::Unauthenticated),
        ),
        (
            TestCluster::new().user("owner"),
            Err(Code::Unauthenticated),
            Err(Code::Unauthenticated),
            Err(Code::Unauthenticated),
        ),
    ];
    for (number, (identity, logs, reboot, status)) in table.into_iter().enumerate() {
        let channel = cluster.channel(&server, identity);
        let mut management = NodeManagementClient::new(channel.clone());
        let code = |status: Status| status.code();
        let request = LogsRequest { backlog_mode: BacklogMode::All.into(), ..LogsRequest::default() };
        assert_eq!(management.logs(request).await.map(drop).map_err(code), logs, "Logs, {number}");
        // One that changes nothing even if it is let through.
        let request = RebootRequest { r#type: Type::Invalid.into(), next_boot: 0 };
        let answer = management.reboot(request).await.map(drop).map_err(code);
        assert_eq!(answer, reboot.and(Err(Code::Unimplemented)), "Reboot, {number}");
        let answer = NodeClient::new(channel).get_status(GetStatusRequest {}).await.map(drop).map_err(code);
        assert_eq!(answer, status, "GetStatus, {number}");
    }

    // One that the cluster lets go is heard no more.
    let mut client = NodeClient::new(cluster.channel(&server, node.client_identity()));
    client.get_status(GetStatusRequest {}).await.unwrap();
    let removed_nodes = [(NodeId::of(&node.public_key()), b"proof".to_vec())].into();
    server.trust.send_replace(Trust { news: News::UpToDate, removed_nodes, ..Trust::default() }.into());
    assert_eq!(client.get_status(GetStatusRequest {}).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(futures::FutureExt::now_or_never(power.requested()).is_none());
    server.finish().await;
}

#[tokio::test]
async fn the_answer_to_a_restart_comes_before_it() {
    let Running { cluster, server, power, .. } = start();
    let channel = cluster.channel(&server, cluster.user("owner"));
    let mut client = NodeManagementClient::new(channel.clone());
    let status = NodeClient::new(channel).get_status(GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    let status: NodeStatus = serde_json::from_str(&status.status_json).unwrap();
    assert_eq!(status.address.as_deref(), Some("192.0.2.1"));

    let update = client.update_node(UpdateNodeRequest::default()).await.unwrap_err();
    assert!(update.code() == Code::FailedPrecondition && update.message().contains("daemon"), "{update:?}");

    client.reboot(RebootRequest { r#type: Type::Kexec.into(), next_boot: 0 }).await.unwrap();
    assert!(futures::FutureExt::now_or_never(power.requested()).is_none(), "it has answered and not ended yet");
    assert_eq!(timeout(PATIENCE, power.requested()).await.unwrap(), End::Restart);
    server.finish().await;
}
