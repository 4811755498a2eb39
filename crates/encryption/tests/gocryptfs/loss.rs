//! gocryptfs dies under a running node, or its mount is in use when it is closed.

use std::process::Stdio;
use std::time::Duration;

use polis_storage::Disk as _;
use polis_storage::data::DataPartition as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, Home, can_run, is_mounted, is_root, keys, path, processes, skip, until};

#[tokio::test]
async fn its_death_is_told_and_cured_by_opening_it_again() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    assert!(tokio::time::timeout(Duration::from_millis(100), world.data.lost()).await.is_err(), "nothing is lost yet");
    for _ in 0..2 {
        let process = world.process().unwrap();
        kill_process(Pid::from_raw(process.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
        let reason = tokio::time::timeout(DEADLINE, world.data.lost()).await.unwrap();
        assert!(reason.contains("gocryptfs") && reason.contains("SIGKILL"), "{reason}");
        let error = world.disk.read(&path("data/node/file"), 10).unwrap_err();
        assert!(error.is_data_closed() && !error.is_absent(), "{error:?}");
        world.open(&keys(1)).await.unwrap();
        assert_eq!(world.read("data/node/file"), b"kept");
        assert!(tokio::time::timeout(Duration::from_millis(50), world.data.lost()).await.is_err(), "it is back");
    }
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn who_unmounts_it_behind_our_back_is_refused() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    let data = home.path().join("data");
    let output = std::process::Command::new("fusermount3").arg("-u").arg(&data).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("busy"), "{output:?}");
    assert_eq!(world.read("data/node/file"), b"kept");
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn a_mount_that_somebody_uses_is_closed_all_the_same() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    let held = std::fs::File::open(home.path().join("data/node/file")).unwrap();
    world.data.close().await.unwrap();
    assert!(!is_mounted(&home.path().join("data")));
    until("gocryptfs ends", || processes(home.path()).is_empty());
    drop(held);
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.read("data/node/file"), b"kept");
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn a_node_that_is_dropped_takes_gocryptfs_with_it() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    let process = world.process();
    assert!(process.is_some());
    drop(world);
    until("gocryptfs ends", || processes(home.path()).is_empty());
    let world = home.world();
    world.prepare().await.unwrap();
    assert!(!is_mounted(&home.path().join("data")));
}

#[tokio::test]
async fn a_mount_whose_process_hangs_is_cleared_for_whoever_waits_for_it_too() {
    if !can_run() || (!is_root() && !skip("to cut off a mount needs root")) {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    let process = Pid::from_raw(world.process().unwrap().try_into().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let data = home.path().join("data");
    let mut waiting = std::process::Command::new("ls").arg(data.join("node")).stderr(Stdio::null()).spawn().unwrap();
    // A life that knows nothing of the first one: it starts no second gocryptfs beside one that may still write.
    let next = home.world();
    let error = tokio::time::timeout(DEADLINE * 2, next.prepare()).await.unwrap().unwrap_err();
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains("still works on") && text.contains("kill -CONT"), "{text}");
    assert!(!is_mounted(&data));
    until("who waited for the mount has an error", || {
        waiting.try_wait().unwrap().is_some_and(|status| !status.success())
    });
    kill_process(process, Signal::CONT).unwrap();
    next.prepare().await.unwrap();
    assert_eq!(processes(home.path()), Vec::<u32>::new());
    next.open(&keys(1)).await.unwrap();
    assert_eq!(next.read("data/node/file"), b"kept");
    next.data.close().await.unwrap();
    // The first life loses nothing by being over.
    drop(world);
}
