//! Snapshots of a real member, taken and checked while it works.

#![forbid(unsafe_code)]

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use polis_consensus::{Configuration, Consensus, EtcdBinary, PeerPki, Start, Timing as RaftTiming};
use polis_identity::NodeKey;
use polis_snapshots::{
    Checker, Fresh, OrderError, RestoreTool, Restored, Settings, SnapshotName, Snapshots, State, Timing, check_file,
};
use polis_storage::{Disk, HostDisk, Layout};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

/// Patience with what should take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// Often enough for a test.
const OFTEN: Timing = Timing { period: Duration::from_secs(2), first_after: Duration::from_millis(10) };

fn free_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let middle = u8::try_from((process >> 8) % 254 + 1).unwrap();
    Ipv4Addr::new(127, middle, process.to_le_bytes()[0], NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

fn etcd() -> EtcdBinary {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/etcd/usr/bin/etcd");
    let explicit = std::env::var_os("POLIS_ETCD").map(PathBuf::from).or_else(|| unpacked.is_file().then_some(unpacked));
    EtcdBinary::find(explicit.as_deref(), std::env::var_os("PATH").as_deref())
        .unwrap_or_else(|_| panic!("there is no etcd to test with; run: scripts/setup test"))
}

/// A founder with its keeper of snapshots.
struct Node {
    consensus: Consensus,
    snapshots: Snapshots,
    harness: Harness,
    directory: TempDir,
}

impl Node {
    async fn start(etcd_for_tool: PathBuf, search_path: Option<std::ffi::OsString>) -> Self {
        Self::start_at(etcd_for_tool, search_path, OFTEN).await
    }

    async fn start_at(etcd_for_tool: PathBuf, search_path: Option<std::ffi::OsString>, timing: Timing) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let layout = Layout::new(Arc::clone(&disk));
        layout.prepare_start().unwrap();
        for made in [&layout.data.directory, &layout.data.etcd.directory, &layout.data.etcd.data] {
            made.create("test").unwrap();
        }
        let key = NodeKey::generate();
        let consensus = Consensus::new(Configuration {
            etcd: etcd(),
            public_key: key.public(),
            pki: PeerPki::found(&key),
            address: watch::Sender::new(Some(free_address())).subscribe(),
            disk: Arc::clone(&disk),
            start: Start::Found,
            timing: RaftTiming::Alone,
        })
        .unwrap();
        let snapshots = Snapshots::new(Settings {
            disk,
            member: watch::Sender::new(Some(consensus.clone())).subscribe(),
            etcd: etcd_for_tool,
            search_path,
            timing,
        });
        let (member, keeper) = (consensus.clone(), snapshots.clone());
        let harness = Harness::start(move |context: Context| {
            let (member, keeper) = (member.clone(), keeper.clone());
            async move {
                context.run("consensus", move |context: Context| member.run(context))?;
                context.run("snapshots", move |context: Context| keeper.clone().run(context))?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        consensus.ready().await;
        Self { consensus, snapshots, harness, directory }
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("data/snapshots")
    }

    async fn wait(&self, what: &str, wanted: impl FnMut(&State) -> bool) -> State {
        let mut state = self.snapshots.state();
        match timeout(PATIENCE, state.wait_for(wanted)).await {
            Ok(state) => *state.unwrap(),
            Err(_) => panic!("not {what} within {PATIENCE:?}: {:?}", self.harness.conditions().snapshot()),
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.place())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name != "trial");
        names.sort();
        names
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_taken_checked_and_restored_for_trial() {
    let node = Node::start(etcd().path().to_owned(), None).await;
    let root = node.consensus.kv_root();
    let revision = root.put("test/put", "key", "value").await.unwrap();
    let tool = RestoreTool::find(etcd().path(), std::env::var_os("PATH").as_deref());
    let Some(tool) = tool else { panic!("there is neither etcdutl nor etcdctl; run: scripts/setup test") };
    let state = node.wait("a snapshot", |state| state.newest.is_some_and(|newest| newest.revision >= revision)).await;
    assert!(state.tried, "{state:?}");
    let newest = state.newest.unwrap();
    let path = node.place().join(newest.to_string());
    assert!(check_file(&path).unwrap().unwrap() > 0);
    assert!(node.harness.conditions().snapshot().is_empty(), "{:?}", node.harness.conditions().snapshot());

    // While nothing changes there is one file, which gets a later name.
    let later =
        node.wait("the same state later", |state| state.newest.is_some_and(|it| it.seconds > newest.seconds)).await;
    assert_eq!(later.newest.map(|newest| newest.revision), Some(newest.revision));
    assert_eq!(later.kept, state.kept);
    // And when something has, another.
    root.put("test/put", "key", "other").await.unwrap();
    let other = node.wait("another", |state| state.newest.is_some_and(|it| it.revision > newest.revision)).await;
    assert_eq!(other.kept, later.kept + 1);
    assert_eq!(node.names().iter().filter(|name| name.parse::<SnapshotName>().is_ok()).count(), other.kept);

    // It is what it says: a cluster can be made of it.
    let restored = Restored {
        data_directory: node.directory.path().join("restored"),
        name: "one".into(),
        peer_url: "https://[fd00::1]:7834".into(),
        token: "another".into(),
    };
    let snapshot = node.place().join(other.newest.unwrap().to_string());
    let done = watch::Sender::new(false);
    let (into, from, told) = (restored.clone(), snapshot.clone(), done.clone());
    let harness = Harness::start(move |context: Context| {
        let (tool, into, from, told) = (tool.clone(), into.clone(), from.clone(), told.clone());
        async move {
            context.healthy();
            tool.restore(&context, &from, &into).await?;
            told.send_replace(true);
            Err(context.cancelled().await.into())
        }
    });
    timeout(PATIENCE, done.subscribe().wait_for(|done| *done)).await.unwrap().unwrap();
    assert!(restored.data_directory.join("member/snap/db").is_file());
    assert!(restored.data_directory.join("member/wal").is_dir());
    harness.finish().await;
    node.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_soon_after_a_snapshot_knows_it_and_goes_on() {
    let often = Timing { period: Duration::from_secs(3600), ..OFTEN };
    let nowhere = PathBuf::from("/nowhere/etcd");
    let node = Node::start_at(nowhere.clone(), None, often).await;
    let first = node.wait("a snapshot", |state| state.newest.is_some()).await;
    // As after a restart: what there is was taken by another life.
    let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(node.directory.path()).unwrap());
    let member = watch::Sender::new(Some(node.consensus.clone())).subscribe();
    let next = Snapshots::new(Settings { disk, member, etcd: nowhere, search_path: None, timing: often });
    let keeper = next.clone();
    let harness = Harness::start(move |context: Context| {
        let keeper = keeper.clone();
        async move { keeper.run(context).await }
    });
    let mut state = next.state();
    let known =
        timeout(PATIENCE, state.wait_for(|state| state.newest.is_some())).await.expect("it is seen").unwrap().newest;
    assert_eq!(known, first.newest, "none is taken so soon");
    // It still works.
    let revision = node.consensus.kv_root().put("test/put", "key", "value").await.unwrap();
    let fresh = timeout(PATIENCE, next.take_now()).await.expect("it is taken").unwrap();
    assert!(fresh.name.revision >= revision);
    harness.finish().await;
    node.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_tool_the_hash_is_checked_and_that_is_said() {
    let nowhere = PathBuf::from("/nowhere/etcd");
    let node = Node::start(nowhere, None).await;
    let state = node.wait("a snapshot", |state| state.newest.is_some()).await;
    assert!(!state.tried);
    let condition = node.harness.conditions().get("snapshots-untried").unwrap();
    assert!(condition.hint.contains("etcd-client"), "{condition:?}");
    node.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_interruption_left_is_no_snapshot_and_goes() {
    let node = Node::start(PathBuf::from("/nowhere/etcd"), None).await;
    let state = node.wait("a snapshot", |state| state.newest.is_some()).await;
    std::fs::write(node.place().join("partial"), "half of one").unwrap();
    std::fs::write(node.place().join("notes"), "of somebody else").unwrap();
    node.consensus.kv_root().put("test/put", "key", "value").await.unwrap();
    node.wait("another", |now| now.newest > state.newest).await;
    let names = node.names();
    assert!(names.contains(&"notes".to_owned()) && !names.contains(&"partial".to_owned()), "{names:?}");
    node.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_one_gets_what_is_now() {
    let node = Node::start(PathBuf::from("/nowhere/etcd"), None).await;
    let root = node.consensus.kv_root();
    for _ in 0..3 {
        let revision = root.put("test/put", "key", "value").await.unwrap();
        let Fresh { name, mut file, length } =
            timeout(PATIENCE, node.snapshots.take_now()).await.expect("it is taken at once").unwrap();
        assert!(name.revision >= revision);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, length);
        let mut checker = Checker::default();
        checker.update(&bytes);
        assert!(checker.finish().is_ok());
    }
    // Without a member there is nothing to take.
    node.harness.finish().await;
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
    let (_member, member) = watch::channel(None);
    let settings = Settings { disk, member, etcd: "/nowhere/etcd".into(), search_path: None, timing: OFTEN };
    let snapshots = Snapshots::new(settings);
    let keeper = snapshots.clone();
    let harness = Harness::start(move |context: Context| keeper.clone().run(context));
    let refused = timeout(PATIENCE, snapshots.take_now()).await.expect("it is refused at once");
    assert!(matches!(refused, Err(OrderError::NoMember)), "{refused:?}");
    harness.finish().await;
}
