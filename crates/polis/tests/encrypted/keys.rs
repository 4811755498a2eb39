//! Keys that are wrong or missing, and directories that were put together wrongly: errors, and nothing destroyed.

use std::fs;
use std::path::Path;

use polis_control::NodeState;
use polis_testkit::checks::{self, faults};
use polis_testkit::node_data::journal;
use polis_testkit::refusal::{Says, refused};
use polis_testkit::snapshot::Snapshot;
use polis_testkit::{Cluster, NodeData, StorageSecurity, damage};

use crate::Place;

/// Directories in which a node keeps what it is.
const KEPT: [&str; 2] = ["encrypted/cipher", "esp/polis"];

/// Starts a node whose keys are wrong: it waits, says so, and changes nothing. It is stopped then.
fn waits_for_keys(place: &Place, says: &str) {
    let before: Vec<Snapshot> = KEPT.iter().map(|name| Snapshot::of(&place.root().join(name))).collect();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_condition("data-keys-wrong");
    assert_ne!(status.state, NodeState::Running);
    let condition = status.conditions.iter().find(|condition| condition.name == "data-keys-wrong").unwrap();
    assert!(condition.message.contains(says), "{condition:?}");
    assert!(node.stop().success());
    for before in before {
        assert_eq!(before.changes(), Vec::<String>::new());
    }
}

#[test]
fn a_wrong_half_of_the_key_opens_nothing_and_destroys_nothing() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let files = damage::journal(&place.root());
    let good: Vec<Option<Vec<u8>>> = files.iter().map(|file| fs::read(file).ok()).collect();
    for change in [damage::other_cluster_unlock_key, damage::other_node_unlock_key] {
        change(&place.root());
        waits_for_keys(&place, "nothing was changed");
        for (file, good) in files.iter().zip(&good) {
            match good {
                Some(bytes) => fs::write(file, bytes).unwrap(),
                None => fs::remove_file(file).unwrap_or_default(),
            }
        }
        place.run(&before);
    }
}

#[test]
fn the_data_of_another_node_are_not_opened() {
    let (place, other) = (Place::enrolled(), Place::enrolled());
    let before = checks::on_disk(&place.root());
    let foreign = checks::on_disk(&other.root()).node_id.unwrap();
    let aside = place.host.directory().join("aside");
    fs::rename(place.root().join("encrypted"), &aside).unwrap();
    fs::rename(other.root().join("encrypted"), place.root().join("encrypted")).unwrap();
    let why = format!("belongs to node {foreign}");
    let data = place.root().join("data");
    let says = Says {
        what: "the data partition cannot be used",
        place: &data,
        why: &why,
        next: "give each node a root of its own, or put the right disk back",
    };
    refused(&place.host, place.command(), 1, says);
    fs::rename(place.root().join("encrypted"), other.root().join("encrypted")).unwrap();
    fs::rename(&aside, place.root().join("encrypted")).unwrap();
    place.run(&before);
}

#[test]
fn encrypted_data_that_are_gone_are_missed_and_not_made_anew() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let aside = place.host.directory().join("aside");
    fs::rename(place.root().join("encrypted"), &aside).unwrap();
    let encrypted = place.root().join("encrypted");
    let data = place.root().join("data");
    let says = Says {
        what: "the data partition cannot be used",
        place: &data,
        why: "is not formatted, though this node's journal says that it was",
        next: "put the right disk back, or restore it",
    };
    refused(&place.host, place.command(), 1, says);
    fs::rename(&aside, &encrypted).unwrap();
    place.run(&before);
}

#[test]
fn slots_that_are_gone_are_missed_and_not_made_anew() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let slot = place.root().join("encrypted/slot.0");
    let good = fs::read(&slot).unwrap();
    fs::remove_file(&slot).unwrap();
    let cipher = Snapshot::of(&place.root().join("encrypted"));
    let mut node = place.host.start(&place.parameters);
    let text = match node.wait_exit_or("a condition", || {
        polis_testkit::glance::status(&place.root()).is_some_and(|status| !faults(&status).is_empty())
    }) {
        Some(_) => node.log(),
        None => format!("{:?}", polis_testkit::glance::status(&place.root()).map(|status| status.conditions)),
    };
    assert!(text.contains("slots are missing"), "{text}");
    drop(node);
    assert_eq!(cipher.changes(), Vec::<String>::new());
    fs::write(&slot, good).unwrap();
    place.run(&before);
}

#[test]
fn a_journal_of_the_one_kind_with_data_of_the_other_is_refused() {
    for (own, other) in [
        (StorageSecurity::Insecure, StorageSecurity::Authenticated),
        (StorageSecurity::Authenticated, StorageSecurity::Insecure),
    ] {
        let (place, donor) = (Place::on(own), Place::on(other));
        place.run(&checks::OnDisk::default());
        donor.run(&checks::OnDisk::default());
        let before = checks::on_disk(&place.root());
        // The directories of its data are exchanged for those of the other, as by a restored backup that is none of its own.
        let aside = place.host.directory().join("aside");
        fs::create_dir(&aside).unwrap();
        for name in ["data", "encrypted"] {
            exchange(&place.root().join(name), &donor.root().join(name), &aside.join(name));
        }
        let data = [place.root().join("data"), place.root().join("encrypted")].map(|path| Snapshot::of(&path));
        let mut node = place.host.start(&place.parameters);
        let end = node.wait_exit();
        assert_eq!(end.code(), Some(1), "{}", node.log());
        assert!(node.log().contains("the data partition cannot be used"), "{}", node.log());
        for before in data {
            assert_eq!(before.changes(), Vec::<String>::new());
        }
        for name in ["data", "encrypted"] {
            exchange(&place.root().join(name), &donor.root().join(name), &aside.join(name));
        }
        place.run(&before);
    }
}

/// Exchanges two directories, each of which may be absent.
fn exchange(one: &Path, other: &Path, aside: &Path) {
    let rename = |from: &Path, to: &Path| {
        if from.exists() {
            fs::rename(from, to).unwrap();
        }
    };
    rename(one, aside);
    rename(other, one);
    rename(aside, other);
}

#[test]
fn a_member_of_three_comes_back_with_the_half_that_the_cluster_keeps() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 3);
    cluster.storage = StorageSecurity::Authenticated;
    cluster.grow();
    let _ = cluster.wait_nodes("all are healthy", |nodes| {
        nodes.len() == 3 && nodes.iter().all(|node| node["state"] == "UP" && node["health"] == "HEALTHY")
    });
    for number in 0..3 {
        let root = cluster.hosts[number].root();
        let has_none = || journal(&root).is_some_and(|journal| journal.cluster_unlock_key.is_none());
        let ended = cluster.node(number).wait_exit_or("no copy of the cluster's half", has_none);
        assert_eq!(ended, None);
    }
    for number in [1, 0, 2] {
        cluster.kill(number);
        let root = cluster.hosts[number].root();
        polis_testkit::processes::wait_until_gone(&root).unwrap_or_else(|left| panic!("{left}"));
        assert!(NodeData::of(&root).is_locked(), "this machine alone opens its data");
        cluster.start(number);
        let _ = cluster.node(number).wait("Running, and in contact", |status| {
            status.state == NodeState::Running && status.contact.as_ref().is_some_and(|contact| contact.in_contact)
        });
        let _ = cluster.wait_nodes("all are healthy", |nodes| {
            nodes.iter().filter(|node| node["state"] == "UP" && node["health"] == "HEALTHY").count() == 3
        });
    }
}
