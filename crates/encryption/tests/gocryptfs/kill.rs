//! A kill at any point: what was begun is finished, there is always a key that opens, and nothing stays behind.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use polis_storage::data::{DataPartition as _, Found};

use crate::common::{Home, NODE, World, adopt_orphans, can_run, ending, is_mounted, keys, processes, until};

/// Names the root in which a child of this test does its work.
const ROOT: &str = "POLIS_ENCRYPTION_TEST_ROOT";

/// How long gocryptfs keeps a mount that nobody uses.
const IDLE: Duration = Duration::from_secs(1);
/// Until when what a killed node leaves has to be gone, on a loaded machine too.
const SOON: Duration = Duration::from_secs(15);

/// Runs a test of this file in another process, which does its work in `root` and dies at `fault` if there is one; returns
/// the fault points that it passed.
fn run(test: &str, root: &Path, fault: Option<&str>) -> (ExitStatus, Vec<String>) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]);
    child.env(ROOT, root).env("POLIS_FAULT_LOG", log.path()).env_remove("POLIS_FAULT");
    if let Some(fault) = fault {
        child.env("POLIS_FAULT", fault);
    }
    let output = child.output().unwrap();
    assert!(fault.is_some() || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let points = std::fs::read_to_string(log.path()).unwrap().lines().map(str::to_owned).collect();
    (output.status, points)
}

/// The points as `POLIS_FAULT` names them: the second pass of one is `NAME#2`.
fn numbered(points: &[String]) -> Vec<String> {
    let pass = |index: usize| points[..=index].iter().filter(|point| **point == points[index]).count();
    (0..points.len()).map(|index| format!("{}#{}", points[index], pass(index))).collect()
}

/// Kills the work at each of its points; `check` sees the root after each.
async fn kill_everywhere(test: &str, prepared: impl AsyncFn(&Path), check: impl AsyncFn(&Path, &str)) {
    adopt_orphans();
    let home = Home::new();
    prepared(home.path()).await;
    let (_, points) = run(test, home.path(), None);
    for fault in numbered(&points) {
        let home = Home::new();
        prepared(home.path()).await;
        let (status, _) = run(test, home.path(), Some(&fault));
        assert_eq!(status.signal(), Some(9), "{fault}");
        // At once: what the process had started may still be there.
        check(home.path(), &fault).await;
        assert!(!is_mounted(&home.path().join("data")), "{fault}");
        until("what the process had started ends", || processes(home.path()).is_empty());
        until("nothing that was killed hangs", || ending().is_empty());
    }
}

#[tokio::test]
async fn a_format_goes_on_after_a_kill_at_any_point() {
    const TEST: &str = "kill::a_format_goes_on_after_a_kill_at_any_point";
    if let Some(root) = std::env::var_os(ROOT) {
        let world = World::at(Path::new(&root));
        world.prepare().await.unwrap();
        return world.format(&keys(1)).await.unwrap();
    }
    if !can_run() {
        return;
    }
    let points = tokio::sync::Mutex::new(0);
    kill_everywhere(
        TEST,
        async |_| (),
        async |root, fault| {
            *points.lock().await += 1;
            let world = World::at(root);
            let found = world.prepare().await.unwrap();
            let expected = match fault {
                "data/gocryptfs/directory/begin#1" => Found::Nothing,
                "data/gocryptfs/partition/renamed#1"
                | "data/gocryptfs/partition/named#1"
                | "data/gocryptfs/partition/done#1" => Found::Formatted { owner: Some(NODE.to_owned()) },
                _ => Found::HalfFormatted,
            };
            // Reading a marker settles its directory, which is a point too and comes before all others.
            assert!(found == expected || fault.starts_with("data/partition/load/"), "{fault}: {found:?}");
            // The second start may have other keys, if the first had not kept them.
            let keys = keys(if expected == Found::HalfFormatted && *points.lock().await % 2 == 0 { 2 } else { 1 });
            world.format(&keys).await.unwrap();
            world.open(&keys).await.unwrap();
            world.write("data/node/file", b"kept");
            world.data.close().await.unwrap();
            assert_eq!(world.prepare().await.unwrap(), Found::Formatted { owner: Some(NODE.to_owned()) }, "{fault}");
        },
    )
    .await;
    assert!(points.into_inner() > 30, "there are many points");
}

#[tokio::test]
async fn a_rotation_leaves_a_key_that_opens_after_a_kill_at_any_point() {
    const TEST: &str = "kill::a_rotation_leaves_a_key_that_opens_after_a_kill_at_any_point";
    if let Some(root) = std::env::var_os(ROOT) {
        let world = World::at(Path::new(&root));
        world.data.add_key(&keys(1), &keys(2)).await.unwrap();
        return world.data.remove_others(&keys(2)).await.unwrap();
    }
    if !can_run() {
        return;
    }
    let formatted = async |root: &Path| {
        let world = World::at(root);
        world.born(&keys(1)).await;
        world.write("data/node/file", b"kept");
        world.data.close().await.unwrap();
    };
    kill_everywhere(TEST, formatted, async |root, fault| {
        let world = World::at(root);
        world.prepare().await.unwrap();
        let mut opening = Vec::new();
        for key in [1, 2] {
            if world.data.test_open(&keys(key)).await.unwrap() {
                opening.push(key);
                world.open(&keys(key)).await.unwrap();
                assert_eq!(world.read("data/node/file"), b"kept", "{fault}");
                world.data.close().await.unwrap();
            }
        }
        assert!(!opening.is_empty(), "{fault}");
        // Whoever goes on with the change ends it.
        if opening.contains(&1) {
            world.data.add_key(&keys(1), &keys(2)).await.unwrap();
        }
        world.data.remove_others(&keys(2)).await.unwrap();
        assert!(
            world.data.test_open(&keys(2)).await.unwrap() && !world.data.test_open(&keys(1)).await.unwrap(),
            "{fault}"
        );
    })
    .await;
}

/// A life that ends by SIGKILL while its partition is open.
async fn life_that_is_killed() {
    if let Some(root) = std::env::var_os(ROOT) {
        let world = World::at(Path::new(&root));
        world.prepare().await.unwrap();
        world.format(&keys(1)).await.unwrap();
        world.open(&keys(1)).await.unwrap();
        world.write("data/node/file", b"kept");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn a_killed_node_leaves_nothing_behind_for_long() {
    const TEST: &str = "kill::a_killed_node_leaves_nothing_behind_for_long";
    life_that_is_killed().await;
    if !can_run() {
        return;
    }
    let home = Home::new();
    let (status, _) = run(TEST, home.path(), Some("none"));
    assert_eq!(status.signal(), Some(9));
    let data = home.path().join("data");
    assert!(is_mounted(&data) && !processes(home.path()).is_empty(), "gocryptfs is not killed with its node");
    let killed = Instant::now();
    until("gocryptfs unmounts and ends", || processes(home.path()).is_empty() && !is_mounted(&data));
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    // So the root can be deleted, or used again.
    let world = home.world();
    assert_eq!(world.prepare().await.unwrap(), Found::Formatted { owner: Some(NODE.to_owned()) });
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.read("data/node/file"), b"kept");
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn the_next_life_does_not_wait_for_what_the_killed_one_has_left() {
    const TEST: &str = "kill::the_next_life_does_not_wait_for_what_the_killed_one_has_left";
    life_that_is_killed().await;
    if !can_run() {
        return;
    }
    let home = Home::new();
    for _ in 0..3 {
        let (status, _) = run(TEST, home.path(), Some("none"));
        assert_eq!(status.signal(), Some(9));
        assert_eq!(processes(home.path()).len(), 1, "of each life, the next one ends what it has left");
    }
    let world = home.world();
    assert_eq!(world.prepare().await.unwrap(), Found::Formatted { owner: Some(NODE.to_owned()) });
    assert_eq!(processes(home.path()), Vec::<u32>::new(), "the first has ended before another one is started");
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.read("data/node/file"), b"kept");
    world.data.close().await.unwrap();
    assert_eq!(processes(home.path()), Vec::<u32>::new());
}

#[tokio::test]
async fn a_mount_that_nobody_uses_stays_as_long_as_its_node() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.format(&keys(1)).await.unwrap();
    let process = world.process();
    // Formatted, and not opened for much longer than gocryptfs waits for whoever uses its mount; then open, and nobody reads anything.
    assert!(tokio::time::timeout(IDLE * 3, world.data.lost()).await.is_err());
    world.open(&keys(1)).await.unwrap();
    assert!(tokio::time::timeout(IDLE * 3, world.data.lost()).await.is_err());
    assert_eq!(world.process(), process);
    world.data.close().await.unwrap();
}
