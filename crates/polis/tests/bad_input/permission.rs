//! Directories that lose their write permission while the node runs. It runs without the powers of root, whom none binds.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use polis_control::{LAST_STATE_FILE, NodeState, Status};
use polis_testkit::checks::OnDisk;
use polis_testkit::confined::without_powers;
use polis_testkit::refusal::{Says, has_condition};
use polis_testkit::{NodeProcess, processes};

use crate::{Place, kill_etcd, wait_last_state};

/// Takes the write permission of a directory away.
fn lock(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o500)).unwrap();
}

/// Gives it back.
fn unlock(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
}

fn start(place: &Place) -> NodeProcess {
    place.host.spawn(without_powers(place.command()))
}

/// A node that waits for its port and has done all before that, and what it waits for.
fn waiting(place: &Place) -> (NodeProcess, TcpListener, OnDisk) {
    let taken = TcpListener::bind((place.host.ip(), 7834)).unwrap();
    let mut node = start(place);
    let status = node.wait_condition("consensus-port-taken");
    (node, taken, known(status))
}

fn known(status: Status) -> OnDisk {
    assert!(status.node_id.is_some());
    OnDisk { node_id: status.node_id, ..OnDisk::default() }
}

fn forbidden(place: &Path) -> Says<'_> {
    Says {
        what: "cannot ",
        place,
        why: "Permission denied",
        next: "give the node's user write permission there; the node goes on by itself",
    }
}

#[test]
fn of_the_journal_before_the_first_write() {
    let place = Place::new();
    let esp = place.root().join("esp");
    fs::create_dir_all(&esp).unwrap();
    lock(&esp);
    let mut node = start(&place);
    let status = node.wait_condition("storage-not-writable");
    has_condition(&status, "storage-not-writable", forbidden(&esp.join("polis")));
    assert_eq!((status.state, &status.node_id), (NodeState::New, &None));
    unlock(&esp);
    place.runs_well(node, &OnDisk::default());
}

#[test]
fn of_the_credentials_while_the_cluster_is_made() {
    let place = Place::new();
    let (mut node, taken, before) = waiting(&place);
    let directory = place.root().join("data/node");
    lock(&directory);
    drop(taken);
    let status = node.wait_condition("storage-not-writable");
    has_condition(&status, "storage-not-writable", forbidden(&directory.join("credentials")));
    assert_eq!(status.state, NodeState::CreatingCluster);
    unlock(&directory);
    place.runs_well(node, &before);
}

#[test]
fn of_the_journal_while_the_cluster_is_made() {
    let place = Place::new();
    let (mut node, taken, before) = waiting(&place);
    let directory = place.root().join("esp/polis");
    lock(&directory);
    drop(taken);
    let status = node.wait_condition("storage-not-writable");
    has_condition(&status, "storage-not-writable", forbidden(&directory.join("journal")));
    assert_eq!(status.state, NodeState::CreatingCluster);
    unlock(&directory);
    place.runs_well(node, &before);
}

#[test]
fn of_the_root() {
    let place = Place::new();
    let (mut node, taken, before) = waiting(&place);
    let root = place.root();
    wait_last_state(&node, &root, "\"formatted\"");
    lock(&root);
    drop(taken);
    let status = node.wait_running_with(&["last-state-not-written"]);
    let file = root.join(LAST_STATE_FILE);
    let says = Says {
        what: "could not be written",
        place: &file,
        why: "Permission denied",
        next: "the node is not affected; see to the disk",
    };
    has_condition(&status, "last-state-not-written", says);
    assert!(fs::read_to_string(&file).unwrap().contains("CreatingCluster"));
    unlock(&root);
    place.runs_well(node, &before);
}

/// Locks a directory of a running node, lets its etcd be started anew, and cures it when the condition says so.
fn while_running(directory: &str, condition: &str, why: &str, next: &str) {
    let place = Place::new();
    let mut node = start(&place);
    let before = known(node.wait_state(NodeState::Running));
    let directory = place.root().join(directory);
    lock(&directory);
    kill_etcd(&place.root());
    let status = node.wait_condition(condition);
    has_condition(&status, condition, Says { what: "etcd ", place: &directory, why, next });
    unlock(&directory);
    place.runs_well(node, &before);
}

#[test]
fn of_what_is_prepared_for_etcd() {
    while_running("ephemeral/consensus", "consensus-etcd-unusable", "Permission denied", "Cure what the message names");
}

#[test]
fn of_the_data_of_etcd() {
    while_running(
        "data/etcd/data/member/wal",
        "consensus-etcd-exiting",
        "permission denied",
        "The log of etcd says more",
    );
}

/// Every mode below a directory, with its path, that is not for its user alone, or not for its user to read and write.
fn odd_modes(directory: &Path) -> Vec<String> {
    let mut odd = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        // What etcd is just replacing.
        let Ok(data) = entry.metadata() else { continue };
        let mode = data.permissions().mode() & 0o777;
        if mode & 0o077 != 0 || mode & 0o600 != 0o600 {
            odd.push(format!("{mode:o} {}", entry.path().display()));
        }
        if data.is_dir() {
            odd.extend(odd_modes(&entry.path()));
        }
    }
    odd
}

#[test]
fn the_mask_for_new_files_of_whoever_starts_it_does_not_matter() {
    for mask in ["0000", "0777"] {
        let place = Place::new();
        let mut command = processes::bound_to_test(Path::new("/bin/sh"));
        command.args(["-c", "umask $0 && exec \"$@\"", mask]);
        let node = without_powers(place.command());
        command.arg(node.get_program()).args(node.get_args());
        let mut node = place.host.spawn(command);
        node.wait_state(NodeState::Running);
        assert_eq!(odd_modes(&place.root()), Vec::<String>::new(), "with the mask {mask}");
        assert!(node.stop().success());
    }
}
