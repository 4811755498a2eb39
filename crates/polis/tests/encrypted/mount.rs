//! The process behind the mount dies, mounts are left over, and disks are full.

use std::fs;
use std::process::Command;

use polis_control::NodeState;
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::confined::{self, Namespace, in_namespace};
use polis_testkit::store::Store;
use polis_testkit::{NodeProcess, mounts, processes};

use crate::Place;

/// The process of this node with this word in its command line.
fn process_of(place: &Place, word: &str) -> Option<u32> {
    let found = processes::in_directory(&place.root());
    found.into_iter().find(|process| process.command.contains(word)).map(|process| process.id)
}

fn kill(id: u32) {
    let id = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw).expect("it has an id");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it can be ended");
}

/// Waits for something that the outside world shows.
fn wait_for(node: &mut NodeProcess, what: &str, done: impl Fn() -> bool) {
    assert_eq!(node.wait_exit_or(what, done), None, "{}", node.log());
}

#[test]
fn gocryptfs_that_is_killed_under_a_running_etcd_loses_nothing_acknowledged() {
    let place = Place::new();
    let mut node = place.host.start(&place.parameters);
    let _ = node.wait_running();
    let _ = node.wait_contact();
    for round in 0..3 {
        let (key, value) = (format!("test/{round}"), format!("acknowledged before death {round}"));
        Store::of_node(&place.root()).put(&key, &value);
        let gocryptfs = process_of(&place, "gocryptfs").expect("it holds the data");
        let etcd = process_of(&place, "--data-dir").expect("the node has an etcd");
        kill(gocryptfs);
        // etcd may not go on over a mount that is dead.
        wait_for(&mut node, "the end of etcd", || process_of(&place, "--data-dir") != Some(etcd));
        wait_for(&mut node, "another gocryptfs", || {
            process_of(&place, "gocryptfs -fg").is_some_and(|new| new != gocryptfs)
        });
        wait_for(&mut node, "another etcd", || process_of(&place, "--data-dir").is_some_and(|new| new != etcd));
        let status = node.wait("Running, without a fault, and in contact", |status| {
            status.state == NodeState::Running
                && checks::faults(status).is_empty()
                && status.contact.as_ref().is_some_and(|contact| contact.in_contact)
        });
        let content = checks::running(&place.root(), &status, &OnDisk::default());
        for earlier in 0..=round {
            let found = content.entries.get(&format!("test/{earlier}")).expect("it was acknowledged");
            assert_eq!(found.value, format!("acknowledged before death {earlier}").into_bytes());
        }
    }
    let log = node.log();
    assert!(log.contains("the process gocryptfs, which holds the data partition, has ended"), "{log}");
    assert!(node.stop().success());
    checks::stopped(&place.host);
}

#[test]
fn the_next_start_takes_over_at_once_from_a_node_that_was_killed() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    for _ in 0..3 {
        let mut node = place.host.start(&place.parameters);
        let status = node.wait_running();
        checks::running(&place.root(), &status, &before);
        // Its gocryptfs, which is not killed with it, and its mount are still there when the next one starts.
        node.kill();
    }
    place.run(&before);
}

#[test]
fn a_killed_node_leaves_nothing_behind_for_long() {
    let place = Place::enrolled();
    let mut node = place.host.start(&place.parameters);
    let _ = node.wait_running();
    node.kill();
    processes::wait_until_gone(&place.root()).unwrap_or_else(|left| panic!("{left}"));
    assert_eq!(mounts::below(&place.root()), Vec::<std::path::PathBuf>::new());
    fs::remove_dir_all(place.root()).expect("its root can be deleted");
}

#[test]
fn a_killed_node_can_be_reset_at_once() {
    let place = Place::enrolled();
    let mut node = place.host.start(&place.parameters);
    let _ = node.wait_running();
    node.kill();
    let root = place.root().display().to_string();
    let run = place.host.polis(["node", "reset", "--root", root.as_str(), "--yes"]);
    assert!(run.status.success(), "{run:?}");
    assert_eq!(processes::in_directory(&place.root()), Vec::new());
    assert_eq!(mounts::below(&place.root()), Vec::<std::path::PathBuf>::new());
    assert!(!place.root().join("encrypted").exists() && !place.root().join("data").exists());
}

#[test]
fn a_mount_of_somebody_else_is_left_alone() {
    if !confined::is_root() {
        println!("skipped: only root may mount what is to be in the way");
        return;
    }
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let data = place.root().join("data");
    let mount = Command::new("mount").args(["-t", "tmpfs", "polis-test"]).arg(&data).status().expect("mount runs");
    assert!(mount.success());
    fs::write(data.join("thesis"), "years").unwrap();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait("a fault", |status| !checks::faults(status).is_empty());
    let text = format!("{:?}", status.conditions);
    assert!(text.contains("tmpfs") && text.contains(&*data.to_string_lossy()), "{text}");
    assert_eq!(fs::read_to_string(data.join("thesis")).unwrap(), "years");
    assert!(Command::new("umount").arg(&data).status().expect("umount runs").success());
    place.runs_well(node, &before);
}

#[test]
fn a_disk_that_is_full_is_waited_for() {
    if !confined::is_root() {
        println!("skipped: only root may give a running node more room");
        return;
    }
    let place = Place::new();
    let directory = place.root().join("encrypted");
    fs::create_dir_all(&directory).unwrap();
    // One page: enough for one file, and not for two.
    let mount = "mount -t tmpfs -o size=4k,mode=700 polis-test \"$1\"";
    let mut node = place.host.spawn(in_namespace(Namespace::Mounts, mount, &[&directory], place.command()));
    let status = node.wait_condition("disk-full");
    assert_eq!(status.state, NodeState::CreatingCluster);
    let before = OnDisk { node_id: status.node_id, ..OnDisk::default() };
    assert!(before.node_id.is_some());
    let id = node.id().to_string();
    let grow = |size: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &id, "--mount", "--", "mount", "-o"]);
        let output = command.arg(format!("remount,size={size}")).arg(&directory).output().expect("nsenter runs");
        assert!(output.status.success(), "{output:?}");
    };
    // Room for all but etcd, which asks for 64 MB at once.
    grow("1m");
    let _ = node.wait_condition("consensus-disk-full");
    grow("200m");
    let status = node.wait_running();
    checks::running(&place.root(), &status, &before);
    assert!(node.stop().success());
}
