//! Roots that a node cannot have.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::NodeProcess;
use polis_testkit::checks::OnDisk;
use polis_testkit::confined::{Namespace, give, in_namespace, is_root, without_powers};
use polis_testkit::host::PATIENCE;
use polis_testkit::refusal::{Says, refused};
use rustix::process::Signal;

use crate::{Place, wait_last_state};

#[test]
fn a_file() {
    let place = Place::new();
    fs::write(place.root(), "precious").unwrap();
    let root = place.root();
    let says = Says {
        what: "its root directory cannot be used",
        place: &root,
        why: "is not a directory",
        next: "give the path of a directory, or of one that can be made",
    };
    refused(&place.host, place.command(), 1, says);
}

#[test]
fn below_a_file() {
    let place = Place::new();
    let file = place.host.directory().join("file");
    fs::write(&file, "precious").unwrap();
    let root = file.join("root");
    let says = Says {
        what: "its root directory cannot be used",
        place: &root,
        why: "is not a directory",
        next: "give the path of a directory, or of one that can be made",
    };
    refused(&place.host, place.command_at(&root), 1, says);
}

/// What is said of a root that cannot be written to.
fn not_writable<'a>(root: &'a Path, why: &'a str) -> Says<'a> {
    Says {
        what: "cannot be written to, and a node must write there",
        place: root,
        why,
        next: "make it writable, or give another root",
    }
}

#[test]
fn read_only_by_its_mode() {
    let place = Place::enrolled();
    let root = place.root();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o500)).unwrap();
    let command = without_powers(place.command());
    refused(&place.host, command, 1, not_writable(&root, "Permission denied"));
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn read_only_by_its_mount() {
    let place = Place::enrolled();
    let root = place.root();
    let mount = "mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"";
    let command = in_namespace(Namespace::Mounts, mount, &[&root], place.command());
    refused(&place.host, command, 1, not_writable(&root, "Read-only file system"));
}

#[test]
fn of_another_user() {
    let place = Place::new();
    let says = |root: &'static str| Says {
        what: "its root directory cannot be used",
        place: Path::new(root),
        why: "belongs to user 65534, and this process runs as user 0",
        next: "run the node as user 65534, or give another root",
    };
    if is_root() {
        let root = place.root();
        fs::create_dir(&root).unwrap();
        fs::write(root.join("something"), "of somebody").unwrap();
        give(&root, 65534);
        refused(&place.host, place.command(), 1, Says { place: &root, ..says("") });
        // One that cannot even be looked into.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o000)).unwrap();
        refused(&place.host, place.command(), 1, Says { place: &root, ..says("") });
        return;
    }
    // An ordinary user can make no directory of another one; but there are some, and this one nobody but root can change.
    let this = fs::metadata(place.host.directory()).unwrap().uid();
    let why = format!("belongs to user 0, and this process runs as user {this}");
    refused(
        &place.host,
        place.command_at(Path::new("/usr")),
        1,
        Says { why: &why, next: "run the node as user 0, or give another root", ..says("/usr") },
    );
}

/// Waits until no thread of a node that was told to stand still runs any more.
fn wait_still(node: &NodeProcess) {
    let tasks = format!("/proc/{}/task", node.id());
    let runs = |task: fs::DirEntry| {
        // The state is the first field after the name, which stands in parentheses.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('T'))
    };
    let patience = Instant::now() + PATIENCE;
    while fs::read_dir(&tasks).unwrap().any(|task| runs(task.unwrap())) {
        assert!(Instant::now() < patience, "a thread goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn in_use_by_a_running_node() {
    let place = Place::new();
    let root = place.root();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_state(NodeState::Running);
    let says = Says {
        what: "its root directory cannot be used",
        place: &root,
        why: "is in use by a running node",
        next: "stop that one first, or give another root",
    };
    wait_last_state(&node, &root, "\"Running\"");
    // Whatever changes now is not the work of the first one, which stands still, and keeps its root all the same.
    node.signal(Signal::STOP);
    wait_still(&node);
    // The processes of the first one stay, of course, so this is not `refused`.
    let before = polis_testkit::snapshot::Snapshot::of(place.host.directory());
    let mut second = place.host.spawn(place.command());
    assert_eq!(second.wait_exit().code(), Some(1), "{}", second.log());
    for part in [says.what, &*root.to_string_lossy(), says.why, says.next] {
        assert!(second.log().contains(part), "{part:?} is not in {}", second.log());
    }
    // What etcd does with its own files is its own business.
    assert_eq!(before.changes_but_for(&["root/data/etcd/data"]), Vec::<String>::new());
    node.signal(Signal::CONT);
    place.runs_well(node, &OnDisk { node_id: status.node_id, ..OnDisk::default() });
    // It is free now.
    let node = place.host.start(&place.parameters);
    place.runs_well(node, &OnDisk::default());
}

#[test]
fn that_cannot_be_made() {
    let place = Place::new();
    let parent = place.host.directory().join("parent");
    fs::create_dir(&parent).unwrap();
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o500)).unwrap();
    let root = parent.join("root");
    let command = without_powers(place.command_at(&root));
    let says = Says {
        what: "its root directory cannot be used",
        place: &root,
        why: "Permission denied",
        next: "hint: give a root that this user can make and write to",
    };
    refused(&place.host, command, 1, says);
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o700)).unwrap();
}
