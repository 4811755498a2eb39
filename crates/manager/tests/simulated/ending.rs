//! The end of a node's membership, in every state, and its traces.

use std::sync::Arc;
use std::time::Duration;

use polis_manager::{Failure, Manager, Outcome, State, preflight};
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Image, Node, Operation, SimulatedDisk, SyncSite, SyncTarget};
use polis_storage::{DataGate, DiskPath, FILE_MODE, Journal, Layout, durable};
use polis_supervisor::Supervisor;

use crate::cluster::{Cluster, Script, Scripted};
use crate::common::{
    Acknowledged, ParametersFile, SimulatedConsensus, disk_with, live, live_beside, manager, register_parameters,
};
use crate::partition::Backends;

const SEEDS: u64 = 6;

/// Patience, in simulated time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Manager on a disk with this on it.
fn start(
    image: Image,
    file: &ParametersFile,
    cluster: Cluster,
    script: Script,
) -> (Arc<SimulatedDisk>, Manager<SimulatedConsensus>, Supervisor) {
    let disk = disk_with(image);
    Layout::new(disk.clone()).prepare_start().unwrap();
    let access = Scripted::new(disk.clone(), cluster, script);
    let manager = manager(&disk, file.source(), &Acknowledged::default(), 0, &access);
    let supervisor = Supervisor::builder().start(manager.runnable());
    (disk, manager, supervisor)
}

fn journal(disk: &Arc<SimulatedDisk>) -> Journal {
    Layout::new(disk.clone()).journal_store(Seals::plain_only()).load().unwrap().expect("there is a journal").value
}

fn in_state(manager: &Manager<SimulatedConsensus>, wanted: State) -> impl Future<Output = ()> {
    let mut progress = manager.watch();
    async move {
        let reached = progress.wait_for(|progress| progress.state == wanted);
        tokio::time::timeout(PATIENCE, reached).await.expect("it gets there").unwrap();
    }
}

/// An image in which a member has no data, so that a start stays in Joining for ever.
fn without_data() -> (Image, ParametersFile) {
    let file = ParametersFile::new();
    let end = live(Image::default(), file.source()).end();
    let disk = disk_with(end);
    durable::remove(&*disk, "test", &DiskPath::parse("data/etcd/data/simulated").unwrap()).unwrap();
    (disk.image(), file)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_removed_fails_in_every_state_and_every_later_start_says_so_and_touches_nothing() {
    let waiting = Script { early_commits: u32::MAX, ..Script::default() };
    let cluster = Cluster::new();
    let register = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
    let (joining, founder) = without_data_off_runtime().await;
    let cases = [
        (State::Running, Image::default(), &founder, Script::default()),
        (State::Running, Image::default(), &register, Script::default()),
        (State::Registering, Image::default(), &register, waiting),
        (State::Joining, joining, &founder, Script::default()),
    ];
    for (state, image, file, script) in cases {
        let (disk, manager, supervisor) = start(image, file, cluster.clone(), script);
        in_state(&manager, state).await;
        // By then the intent is durable, and there is something to remember.
        let mut progress = manager.watch();
        progress.wait_for(|progress| progress.phase.is_some()).await.unwrap();
        manager.remove("it was deleted: sold");
        manager.remove("for another reason");
        match tokio::time::timeout(PATIENCE, manager.watch().wait_for(|progress| progress.failure.is_some())).await {
            Ok(Ok(progress)) => {
                let failure = progress.failure.clone().unwrap();
                assert!(
                    matches!(&*failure, Failure::Removed { reason } if reason == "it was deleted: sold"),
                    "{failure}"
                );
                assert!(matches!(progress.phase, Some(Phase::Removed { .. })));
            }
            outcome => panic!("{state}: {:?}", outcome.map(|_| ())),
        }
        supervisor.shutdown().await.unwrap();
        assert!(matches!(journal(&disk).phase(), Phase::Removed { reason } if reason == "it was deleted: sold"));

        let end = disk.image();
        let (again, manager, supervisor) = start(end.clone(), file, cluster.clone(), Script::default());
        match manager.wait_finished().await {
            Outcome::Failed(failure) => {
                assert!(failure.to_string().contains("removed from the cluster: it was deleted: sold"), "{failure}");
            }
            Outcome::Running(_) => panic!("{state}: it runs again"),
        }
        supervisor.shutdown().await.unwrap();
        assert!(again.image() == end, "{state}: a later start has changed something");
        let backends = Backends::new(&again, &DataGate::open(), false);
        let refused = preflight(again, &Seals::plain_only(), &backends, &file.source()).await;
        assert!(matches!(refused, Err(Failure::Removed { .. })), "{state}");
    }
}

/// [`without_data`], which has a runtime of its own.
async fn without_data_off_runtime() -> (Image, ParametersFile) {
    std::thread::spawn(without_data).join().unwrap()
}

/// Every file of an image with its bytes.
fn files(image: &Image) -> Vec<(String, Vec<u8>)> {
    let content = |path: &DiskPath| match image.get(path) {
        Some(Node::File { content, .. }) => content.clone(),
        Some(Node::Directory { .. }) | None => Vec::new(),
    };
    image.files().iter().map(|path| (path.to_string(), content(path))).collect()
}

/// Which files hold one of these secrets.
fn holders(image: &Image, secrets: &[Vec<u8>]) -> Vec<String> {
    let holds = |bytes: &[u8]| secrets.iter().any(|secret| bytes.windows(secret.len()).any(|found| found == secret));
    files(image).into_iter().filter(|(_, bytes)| holds(bytes)).map(|(path, _)| path).collect()
}

/// A node that is a member, with data of a consensus member that were set aside, and all its secrets.
fn member() -> (Image, ParametersFile, Cluster, Vec<Vec<u8>>) {
    let cluster = Cluster::new();
    let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
    let life = live_beside(Image::default(), file.source(), cluster, Script::default());
    assert!(life.runs(), "{}", life.describe());
    let disk = disk_with(life.end());
    let layout = Layout::new(disk.clone());
    let journal = journal(&disk);
    let credentials = layout.data.node.credentials.load().unwrap().unwrap();
    let set_aside = b"all that the cluster knows".to_vec();
    durable::create_directory(&*disk, "test", &DiskPath::parse("data/etcd/removed-1").unwrap(), 0o700).unwrap();
    durable::create_directory(&*disk, "test", &DiskPath::parse("data/etcd/data").unwrap(), 0o700).unwrap();
    // A member whose role was taken leaves its data in their place, and puts them away a moment later.
    for path in ["data/etcd/removed-1/db", "data/etcd/data/db"] {
        durable::write(&*disk, "test", &DiskPath::parse(path).unwrap(), FILE_MODE, &set_aside).unwrap();
    }
    // It is named like one of these, and is none.
    let no_directory = DiskPath::parse("data/etcd/removed-9").unwrap();
    durable::write(&*disk, "test", &no_directory, FILE_MODE, b"somebody's").unwrap();
    let secrets = vec![
        credentials.node_key.expose().to_vec(),
        journal.join_key.expose().to_vec(),
        journal.share_key.expose().to_vec(),
        life.cluster().ticket_secret().to_vec(),
        set_aside,
    ];
    (disk.image(), file, life.cluster().clone(), secrets)
}

#[test]
fn a_decommissioned_node_has_no_keys_left_wherever_it_was_cut_off() {
    let (image, file, cluster, secrets) = member();
    // The earlier generation of the journal has all of them, the ticket among them.
    assert!(holders(&image, &secrets).len() >= 3, "{:?}", holders(&image, &secrets));
    let disk = disk_with(image);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        Layout::new(disk.clone()).prepare_start().unwrap();
        let access = Scripted::new(disk.clone(), cluster.clone(), Script::default());
        let manager = manager(&disk, file.source(), &Acknowledged::default(), 0, &access);
        let supervisor = Supervisor::builder().start(manager.runnable());
        in_state(&manager, State::Running).await;
        tokio::time::timeout(PATIENCE, manager.erase_keys("it was decommissioned")).await.unwrap();
        // It can still report that.
        assert_eq!(manager.state(), State::Running);
        assert_eq!(holders(&disk.image(), &secrets), Vec::<String>::new());
        tokio::time::timeout(PATIENCE, manager.erase_keys("it was decommissioned")).await.unwrap();
        manager.remove("it was decommissioned");
        in_state(&manager, State::Failed).await;
        supervisor.shutdown().await.unwrap();
    });

    let recording = disk.recording();
    let erased = SyncSite { site: "erase/journal", target: SyncTarget::Directory };
    let is_erased = |operation: &Operation| matches!(operation, Operation::Sync { site, .. } if *site == erased);
    let erased_from = 1 + recording.operations.iter().position(is_erased).expect("the journal was erased");
    let mut cut_off = 0;
    for cut in recording.cuts().unwrap() {
        for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
            let after = live_beside(cut.power_cut(seed), file.source(), cluster.clone(), Script::default());
            let place = format!("cut after {}, seed {seed}", cut.prefix);
            match &after.outcome {
                // Nothing was erased yet; it is still a member.
                Some(Outcome::Running(_)) => assert!(cut.prefix < erased_from, "{place}: it runs again"),
                Some(Outcome::Failed(failure)) => {
                    assert!(failure.to_string().contains("it was decommissioned"), "{place}: {failure}");
                    assert_eq!(holders(&after.end(), &secrets), Vec::<String>::new(), "{place}");
                    cut_off += 1;
                }
                None => panic!("{place}: {}", after.describe()),
            }
        }
    }
    println!("{cut_off} power cuts while the keys were erased");
    assert!(cut_off > 20, "only {cut_off}");
}

#[test]
fn erasing_that_was_cut_off_is_no_reason_not_to_start() {
    let (image, file, _, _) = member();
    let disk = disk_with(image);
    let store = Layout::new(disk.clone()).journal_store(Seals::plain_only());
    let mut erased = journal(&disk).advance(Phase::Removed { reason: "it was decommissioned".into() }).unwrap();
    erased.join_key = polis_secret::Secret32::new([0; 32]);
    store.store(&erased, "test").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let preflight = |disk: &Arc<SimulatedDisk>| {
        let backends = Backends::new(disk, &DataGate::open(), false);
        runtime.block_on(preflight(disk.clone(), &Seals::plain_only(), &backends, &file.source()))
    };
    assert!(preflight(&disk).is_ok(), "there are keys to erase");
    let after = live(disk.image(), file.source());
    assert!(after.describe().contains("it was decommissioned"), "{}", after.describe());
    assert!(matches!(preflight(&disk_with(after.end())), Err(Failure::Removed { .. })));
}
