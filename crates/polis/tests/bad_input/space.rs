//! Disks that are full: small ones in a mount namespace of the node's own.

use std::fs;
use std::path::Path;

use polis_control::NodeState;
use polis_testkit::NodeProcess;
use polis_testkit::checks::OnDisk;
use polis_testkit::confined::{Namespace, in_namespace, seen_by};
use polis_testkit::refusal::{Says, has_condition};

use crate::Place;

/// Where a file that takes all the room stands. An ext file system has such a directory, and it is in the way of nobody.
const FILLER: &str = "lost+found/filler";

/// Starts a node that has a disk of its own of this size, which is full, at `directory`. The directories above it stay outside,
/// so that the node can be asked how it is.
fn start_on_full_disk(place: &Place, directory: &Path, size: &str) -> NodeProcess {
    fs::create_dir_all(directory).unwrap();
    let fill = format!(
        "mount -t tmpfs -o size={size},mode=700 polis-test \"$1\"; mkdir \"$1/lost+found\"; \
         head -c 1G /dev/zero >\"$1/{FILLER}\" 2>/dev/null || true"
    );
    place.host.spawn(in_namespace(Namespace::Mounts, &fill, &[directory], place.command()))
}

/// What is said of a full disk.
fn full(place: &Path) -> Says<'_> {
    Says {
        what: "cannot ",
        place,
        why: "No space left on device",
        next: "make room on this file system; the node goes on by itself",
    }
}

#[test]
fn data_disk_that_is_full() {
    let place = Place::new();
    let data = place.root().join("data");
    let mut node = start_on_full_disk(&place, &data, "160m");
    let status = node.wait_condition("disk-full");
    has_condition(&status, "disk-full", full(&data));
    assert_eq!(status.state, NodeState::CreatingCluster);
    let before = OnDisk { node_id: status.node_id, ..OnDisk::default() };
    assert!(before.node_id.is_some());

    // Room for all but etcd, which asks for 64 MB at once.
    let filler = seen_by(node.id(), &data.join(FILLER));
    fs::OpenOptions::new().write(true).open(&filler).unwrap().set_len(140 << 20).unwrap();
    let status = node.wait_condition("consensus-disk-full");
    let etcd = data.join("etcd/data");
    let says = Says {
        what: "etcd has no space for its data",
        place: &etcd,
        why: "no space left on the disk",
        next: "Make room on that disk; what was acknowledged is not lost.",
    };
    has_condition(&status, "consensus-disk-full", says);
    assert!(!status.conditions.iter().any(|condition| condition.name == "disk-full"), "{:?}", status.conditions);

    fs::remove_file(filler).unwrap();
    place.runs_well(node, &before);
}

#[test]
fn journal_disk_that_is_full() {
    let place = Place::new();
    let esp = place.root().join("esp");
    let mut node = start_on_full_disk(&place, &esp, "64k");
    let status = node.wait_condition("disk-full");
    has_condition(&status, "disk-full", full(&esp));
    assert_eq!(status.node_id, None, "it has an identity that is not durable");
    fs::remove_file(seen_by(node.id(), &esp.join(FILLER))).unwrap();
    place.runs_well(node, &OnDisk::default());
}
