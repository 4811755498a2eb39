//! What is kept twice: with one copy gone the node works, says so, and mends it.

use std::fs;
use std::path::{Path, PathBuf};

use polis_control::NodeState;
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::damage;
use polis_testkit::refusal::{Says, has_condition};

use crate::Place;

/// Does `harm` to these files, then starts the node and checks that it runs, says so, and says nothing at the next start.
fn is_mended(place: &Place, before: &OnDisk, harmed: &[&PathBuf], harm: fn(&Path), condition: &str, says: Says<'_>) {
    harmed.iter().for_each(|path| harm(path));
    let left: Vec<Option<Vec<u8>>> = harmed.iter().map(|path| fs::read(path).ok()).collect();
    let mut node = place.host.start(&place.parameters);
    // What is not needed to run is read beside that.
    let status = node.wait_running_with(&[condition]);
    has_condition(&status, condition, says);
    // What the node can only learn from its cluster comes when that has been reached.
    let is_written =
        || harmed.iter().zip(&left).any(|(path, left)| fs::read(path).is_ok_and(|now| Some(&now) != left.as_ref()));
    assert_eq!(node.wait_exit_or("what was harmed is written anew", is_written), None, "{}", node.log());
    assert!(node.stop().success());
    checks::stopped(&place.host);
    // Reading what is on the disk fails where one generation is not whole.
    assert_eq!(checks::on_disk(&place.root()), *before);
    place.runs_well(place.host.start(&place.parameters), before);
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn scribble(path: &Path) {
    fs::write(path, "this was not Polis").unwrap();
}

#[test]
fn journal_with_one_generation_torn() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    for path in damage::journal(&place.root()) {
        let says = Says {
            what: "one of the two generations of the enrolment journal was damaged and has been written anew",
            place: &path,
            why: "it is damaged: ",
            next: "look at the disk",
        };
        is_mended(&place, &before, &[&path], damage::tear, "journal-generation-damaged", says);
        let says = Says { why: "it is not a file of this kind", ..says };
        is_mended(&place, &before, &[&path], scribble, "journal-generation-damaged", says);
        let says = Says { why: "it is missing, though it was written once", ..says };
        is_mended(&place, &before, &[&path], remove, "journal-generation-damaged", says);
    }
}

#[test]
fn roles_torn() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let [first, second] = damage::roles(&place.root());
    let says = Says {
        what: "the record of this node's roles was damaged and has been written anew",
        place: &first,
        why: "it is damaged: ",
        next: "nothing is lost; look at the disk if it happens again",
    };
    // The first start has written one generation only; mending writes the other.
    is_mended(&place, &before, &[&first], damage::tear, "roles-damaged", says);
    damage::write_roles_again(&place.root());
    is_mended(&place, &before, &[&first], damage::tear, "roles-damaged", says);
    is_mended(&place, &before, &[&second], damage::tear, "roles-damaged", Says { place: &second, ..says });
    is_mended(&place, &before, &[&first, &second], damage::tear, "roles-damaged", says);
    let says = Says { why: "both of its files are missing", ..says };
    let there: Vec<&PathBuf> = [&first, &second].into_iter().filter(|path| path.exists()).collect();
    is_mended(&place, &before, &there, remove, "roles-damaged", says);
}

/// A place with a node that has learned from its cluster all that there is to learn, and was stopped.
fn informed() -> Place {
    let place = Place::new();
    let mut node = place.host.start(&place.parameters);
    node.wait_state(NodeState::Running);
    node.wait_contact();
    let last = place.root().join("esp/polis/members.0");
    assert_eq!(node.wait_exit_or("a member list that is durable", || last.exists()), None, "{}", node.log());
    assert!(node.stop().success());
    place
}

#[test]
fn what_the_cluster_tells_again_torn() {
    for (record, condition, what) in [
        ("esp/polis/directory", "directory-damaged", "the directory of the cluster's nodes was damaged"),
        ("esp/polis/members", "members-damaged", "the signed list of consensus members was damaged"),
        (
            "data/node/revocations",
            "revocations-damaged",
            "the list of what the cluster's authority has revoked was damaged",
        ),
    ] {
        let place = informed();
        let before = checks::on_disk(&place.root());
        let [first, second] = ["0", "1"].map(|number| place.root().join(format!("{record}.{number}")));
        let next = "nothing is lost once the cluster has been reached; look at the disk if it happens again";
        let says = Says { what, place: &first, why: "it is damaged: ", next };
        is_mended(&place, &before, &[&first], damage::tear, condition, says);
        let there: Vec<&PathBuf> = [&first, &second].into_iter().filter(|path| path.exists()).collect();
        for path in &there {
            is_mended(&place, &before, &[path], damage::tear, condition, Says { place: path, ..says });
        }
        is_mended(&place, &before, &there, damage::tear, condition, says);
    }
}
