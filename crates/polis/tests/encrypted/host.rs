//! A host that cannot do what the cluster asks of it.

use std::fs;
use std::path::Path;

use polis_testkit::checks;
use polis_testkit::confined::{self, Namespace, in_namespace};
use polis_testkit::refusal::{Says, has_condition, refused};

use crate::Place;

/// Where distributions install it.
const GOCRYPTFS: &str = "/usr/bin/gocryptfs";

/// What installs it.
const INSTALL: &str = "apt-get install gocryptfs fuse3";

/// The node on a host without gocryptfs.
fn without_gocryptfs(place: &Place) -> std::process::Command {
    in_namespace(Namespace::Mounts, "mount --bind /dev/null \"$1\"", &[Path::new(GOCRYPTFS)], place.command())
}

#[test]
fn a_host_without_gocryptfs_is_refused_and_nothing_is_weakened() {
    if !confined::is_root() || !Path::new(GOCRYPTFS).exists() {
        println!("skipped: only root may hide {GOCRYPTFS}");
        return;
    }
    let place = Place::new();
    let program = Path::new("gocryptfs");
    let why = "this host cannot keep a data partition that is authenticated and encrypted";
    let says = Says { what: "did not start", place: program, why, next: INSTALL };
    refused(&place.host, without_gocryptfs(&place), 2, says);
    assert!(!place.root().exists(), "nothing was made");

    // A node that has its data already waits for it.
    place.run(&checks::OnDisk::default());
    let before = checks::on_disk(&place.root());
    let mut node = place.host.spawn(without_gocryptfs(&place));
    let status = node.wait_condition("storage-not-available");
    has_condition(
        &status,
        "storage-not-available",
        Says { what: "this host cannot", place: program, why, next: INSTALL },
    );
    assert!(node.stop().success());
    assert!(fs::read_dir(place.root().join("data")).unwrap().next().is_none(), "nothing was written in the clear");
    place.run(&before);
}
