//! Windows that need more than a kill: what stands on the disk or what etcd does is prepared.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::address::TestAddress;
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::{NodeData, Steps, StorageSecurity, damage, etcd, processes, scratch};

use crate::tables::first_start;
use crate::{Place, was_killed};

/// A place with a node that has run, has come to rest and was stopped.
fn enrolled() -> (Place, OnDisk) {
    let place = Place::new();
    let mut node = place.host.spawn(place.logged(place.host.command()));
    node.wait_state(NodeState::Running);
    place.wait_rest(&mut node, &first_start());
    assert!(node.stop().success());
    let before = checks::on_disk(&place.root());
    (place, before)
}

/// Starts the node, which is to die at this point.
fn die_at(place: &Place, point: &str) {
    let mut command = place.logged(place.host.command());
    command.env("POLIS_FAULT", point);
    assert!(was_killed(place.host.spawn(command).wait_exit()), "{point}");
    processes::wait_until_gone(place.host.directory()).unwrap_or_else(|left| panic!("{left}"));
}

/// Starts the node and checks it; returns its log.
fn run(place: &Place, before: &OnDisk) -> String {
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_running();
    checks::running(&place.root(), &status, before);
    let log = node.log();
    assert!(node.stop().success());
    checks::stopped(&place.host);
    log
}

#[test]
pub(crate) fn s1_parameters_that_are_still_present_are_ignored() {
    let (place, before) = enrolled();
    let log = run(&place, &before);
    assert!(log.contains("the parameters are ignored"), "{log}");
    // They are not even parsed.
    fs::write(&place.parameters, "not parameters").unwrap();
    run(&place, &before);
    fs::remove_file(&place.parameters).unwrap();
    run(&place, &before);
}

/// An etcd that behaves as `script` says; `$etcd` is the real one.
fn scripted_etcd(place: &Place, script: &str) -> PathBuf {
    let path = place.host.directory().join("etcd");
    let real = etcd::binary();
    let text = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\netcd='{}'\n[ \"$1\" != --version ] || exec \"$etcd\" --version\n{script}\n",
        real.display()
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
pub(crate) fn s5_a_slow_etcd_is_waited_for() {
    let place = Place::new();
    let tries = place.host.directory().join("tries");
    // The first two die at once, the third takes longer than any look at it.
    let script = format!(
        "echo >>'{tries}'\n[ $(wc -l <'{tries}') -gt 2 ] || exit 1\nsleep 12\nexec \"$etcd\" \"$@\"",
        tries = tries.display()
    );
    let mut command = place.host.command_with_etcd(&scripted_etcd(&place, &script));
    command.arg("--parameters").arg(&place.parameters);
    let mut node = place.host.spawn(command);
    node.wait_condition("consensus-etcd-exiting");
    let hanging = node.wait_condition("consensus-etcd-hanging");
    assert_eq!(hanging.state, NodeState::CreatingCluster);
    let status = node.wait_running();
    checks::running(&place.root(), &status, &OnDisk { node_id: hanging.node_id, ..OnDisk::default() });
    assert_eq!(fs::read_to_string(tries).unwrap().lines().count(), 3);
    assert!(node.stop().success());
    checks::stopped(&place.host);
}

/// The type of a record in etcd's write-ahead log that is an entry.
const ENTRY: u8 = 2;

#[test]
pub(crate) fn s6_a_founding_that_etcd_had_only_begun_is_begun_again() {
    let place = Place::new();
    die_at(&place, "birth/before");
    let before = checks::on_disk(&place.root());
    // As after a kill between etcd's making of the log and its first entry: the head alone is there. etcd starts with that, has
    // no voter, and waits for a leader for ever.
    let data = NodeData::of(&place.root());
    let log = data.path("data/etcd/data/member/wal/0000000000000000-0000000000000000.wal");
    let mut bytes = fs::read(&log).unwrap();
    let mut position = 0;
    while bytes[position + 9] != ENTRY {
        // Eight bytes of frame: the length, and in the last one how many bytes fill the record up.
        let length: [u8; 4] = bytes[position..position + 4].try_into().unwrap();
        position += 8 + (u32::from_le_bytes(length) as usize).next_multiple_of(8);
    }
    bytes[position..].fill(0);
    fs::write(&log, bytes).unwrap();
    drop(data);
    run(&place, &before);
}

#[test]
pub(crate) fn w11_a_directory_that_is_rewritten_always_has_this_node() {
    let (mut place, before) = enrolled();
    for step in Steps::Write.names() {
        let old = place.host.ip().to_string();
        place.host.move_to(TestAddress::claim());
        let new = place.host.ip().to_string();
        die_at(&place, &format!("directory/{step}"));
        let is_replaced = ["renamed", "named", "done"].contains(step);
        let now = checks::own_addresses(&place.root());
        assert_eq!(now.first(), Some(if is_replaced { &new } else { &old }), "{step}: {now:?}");

        let mut node = place.host.spawn(place.logged(place.host.command()));
        let status = node.wait_running();
        checks::running(&place.root(), &status, &before);
        let is_written = || is_replaced || place.passed().iter().any(|point| point == "directory/done");
        assert_eq!(node.wait_exit_or("a directory that is written", is_written), None, "{}", node.log());
        assert!(node.stop().success());
        checks::stopped(&place.host);
        let now = checks::own_addresses(&place.root());
        assert!(now[0] == new && now.contains(&old), "{step}: {now:?}");
    }
}

/// Longest time in which roles that were not saved are healed once the node runs (window W14).
const HEALING: Duration = Duration::from_secs(5);

#[test]
pub(crate) fn w14_roles_that_were_not_saved_are_healed() {
    let (place, before) = enrolled();
    let kills = Steps::Write.names().iter().map(|step| Some(format!("roles/recorded/{step}")));
    for kill in [None].into_iter().chain(kills) {
        damage::lose_controller_role(&place.root());
        if let Some(point) = &kill {
            die_at(&place, point);
        }
        let mut node = place.host.start(&place.parameters);
        let status = node.wait_running();
        let runs = Instant::now();
        checks::running(&place.root(), &status, &before);
        node.wait("all roles", |status| status.roles == ["ConsensusMember", "KubernetesController"]);
        assert!(runs.elapsed() < HEALING, "{kill:?}: {:?}", runs.elapsed());
        assert!(node.stop().success());
        checks::stopped(&place.host);
    }
}

#[test]
pub(crate) fn w12_torn_roles_are_mended() {
    let (place, before) = enrolled();
    let roles = |data: &NodeData| ["roles.0", "roles.1"].map(|name| data.path("data/node").join(name));
    let whole = fs::read(&roles(&NodeData::of(&place.root()))[0]).unwrap();
    // Each start writes the roles anew, the one torn file or the other. What is torn in turn: the only one, both, and one.
    for torn in [0..1, 0..2, 1..2] {
        let data = NodeData::of(&place.root());
        for path in &roles(&data)[torn] {
            fs::write(path, &whole[..whole.len() / 2]).unwrap();
        }
        drop(data);
        let mut node = place.host.start(&place.parameters);
        let status = node.wait_running_with(&["roles-damaged"]);
        assert_eq!(status.roles, ["ConsensusMember", "KubernetesController"]);
        assert!(node.stop().success());
        checks::stopped(&place.host);
        // The next start finds nothing wrong.
        run(&place, &before);
    }
}

#[test]
pub(crate) fn w18_a_failed_format_is_tried_again_in_the_same_process() {
    let place = Place::new();
    fs::create_dir(place.root()).unwrap();
    // Where the data are to be, something is that no directory can be made of.
    let obstacle = place.root().join("data");
    fs::write(&obstacle, "").unwrap();
    let mut node = place.host.start(&place.parameters);
    if StorageSecurity::of_this_run() == StorageSecurity::Authenticated {
        // What is in the way of a mount is not even tried; the disk that is full, which is, has a test among those of encrypted data.
        assert_eq!(node.wait_exit().code(), Some(1), "{}", node.log());
        fs::remove_file(&obstacle).unwrap();
        run(&place, &OnDisk::default());
        return;
    }
    let status = node.wait_condition("storage-failing");
    assert_eq!(status.state, NodeState::CreatingCluster);
    fs::remove_file(&obstacle).unwrap();
    let before = OnDisk { node_id: status.node_id, ..OnDisk::default() };
    assert!(before.node_id.is_some());
    let status = node.wait_running();
    checks::running(&place.root(), &status, &before);
    assert!(node.stop().success());
    checks::stopped(&place.host);
}

#[test]
pub(crate) fn w20_a_longer_stale_temporary_is_swept() {
    let (place, before) = enrolled();
    let stands = |root: &Path, data: &NodeData| -> Vec<PathBuf> {
        // The ciphertext is seen through what is below `data`, and the key slots are not the node's to read.
        let is_direct = |path: &PathBuf| {
            let below = path.strip_prefix(root).unwrap();
            ["data", "ephemeral", "encrypted/cipher", "encrypted/work"].iter().all(|other| !below.starts_with(other))
        };
        let direct = scratch::files(root).into_iter().filter(is_direct);
        let etcd = data.path("data/etcd/data");
        let below = scratch::files(&data.path("data")).into_iter().filter(|path| !path.starts_with(&etcd));
        direct.chain(below).collect()
    };
    let root = place.root();
    let data = NodeData::of(&root);
    let files = stands(&root, &data);
    assert!(files.len() >= 7, "{files:?}");
    let mut stale = Vec::new();
    for path in &files {
        let name = format!(".{}.{:032x}.polis-tmp", path.file_name().unwrap().to_str().unwrap(), 7);
        let temporary = path.with_file_name(name);
        // The content that is already there, and much more.
        fs::write(&temporary, [fs::read(path).unwrap(), vec![b'x'; 1 << 20]].concat()).unwrap();
        stale.push(temporary);
    }
    let lengths = |files: &[PathBuf]| files.iter().map(|path| fs::metadata(path).unwrap().len()).collect::<Vec<_>>();
    let before_start = lengths(&files);
    drop(data);
    let log = run(&place, &before);
    let data = NodeData::of(&root);
    let (then, files) = (files, stands(&root, &data));
    assert_eq!(names(&files), names(&then));
    for path in &stale {
        assert!(log.contains(path.file_name().unwrap().to_str().unwrap()), "{}", path.display());
    }
    // Nothing of them got into the files; only the last state is written by each start.
    for ((path, before), now) in files.iter().zip(before_start).zip(lengths(&files)) {
        assert!(
            now == before || path.ends_with("last_state.json") && now < 1 << 20,
            "{}: {before} and {now} bytes",
            path.display()
        );
    }
}

/// Names of files without the directories above them, which differ from look to look where data are encrypted.
fn names(files: &[PathBuf]) -> Vec<&OsStr> {
    files.iter().filter_map(|path| path.file_name()).collect()
}
