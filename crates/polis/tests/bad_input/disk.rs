//! What a disk may hold that a node must not build on: it ends, and everything stays for a human to look at.

use std::fs;
use std::path::{Path, PathBuf};

use polis_control::{LAST_STATE_FILE, LastState, NodeState};
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::damage;
use polis_testkit::refusal::{Says, has_condition, refused, refused_but_for};

use crate::Place;

/// What a node that has begun its work may have changed: what it says of itself, and what does not outlast a start.
const WRITTEN_AT_WORK: [&str; 2] = ["root/last_state.json", "root/ephemeral"];

/// The id of a node that does not run.
fn node_id(place: &Place) -> String {
    checks::on_disk(&place.root()).node_id.expect("it has an identity")
}

/// Checks that a node at its work ends with this message, says so in its last state, and keeps everything.
fn fails(place: &Place, says: Says<'_>) {
    refused_but_for(&place.host, place.command(), 1, says, &WRITTEN_AT_WORK);
    let last = fs::read_to_string(place.root().join(LAST_STATE_FILE)).unwrap();
    let last: LastState = serde_json::from_str(&last).unwrap();
    assert_eq!(last.status.state, NodeState::Failed);
    assert!(last.status.reason.is_some_and(|reason| reason.contains(says.why)));
}

/// Checks that the node is the same as ever once everything is back in its place.
fn comes_back(place: &Place, before: &OnDisk) {
    place.runs_well(place.host.start(&place.parameters), before);
}

#[test]
fn journal_with_both_generations_torn() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let journal = damage::journal(&place.root());
    let whole = journal.each_ref().map(|path| fs::read(path).unwrap());
    journal.iter().for_each(|path| damage::tear(path));
    for path in &journal {
        let says = Says {
            what: "the enrolment journal cannot be used",
            place: path,
            why: "neither copy can be used",
            next: "restore one of them from a backup",
        };
        refused(&place.host, place.command(), 1, says);
    }
    // One that is gone altogether is no better.
    fs::remove_file(&journal[0]).unwrap();
    let says = Says {
        what: "the enrolment journal cannot be used",
        place: &journal[0],
        why: "it is missing, though it was written once",
        next: "restore one of them from a backup",
    };
    refused(&place.host, place.command(), 1, says);
    journal.iter().zip(whole).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    comes_back(&place, &before);
}

#[test]
fn journal_of_a_future_version() {
    let place = Place::enrolled();
    let journal = damage::journal(&place.root());
    let newest_last = {
        let mut paths = journal.to_vec();
        paths.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
        paths
    };
    // The older generation alone, then both: in both cases a later version has been here.
    for path in newest_last {
        damage::from_the_future(&path);
        let says = Says {
            what: "the enrolment journal cannot be used",
            place: &path,
            why: "has version 2 of its format, and this build knows version 1: it was written by a newer Polis",
            next: "run that version or a newer one",
        };
        let says =
            if path == journal[0] || !is_future(&journal[0]) { says } else { Says { place: &journal[0], ..says } };
        refused(&place.host, place.command(), 1, says);
    }
}

fn is_future(journal: &Path) -> bool {
    fs::read(journal).unwrap()[8..12] == 2_u32.to_be_bytes()
}

#[test]
fn journal_that_records_the_removal() {
    let place = Place::enrolled();
    damage::removed(&place.root(), "decommissioned by its owner");
    let says = Says {
        what: "removed from the cluster",
        place: Path::new("The journal records it"),
        why: "decommissioned by its owner",
        next: "To use the machine again, give it a new root directory",
    };
    refused(&place.host, place.command(), 1, says);
    // Nor do parameters bring it back.
    refused(&place.host, place.host.command(), 1, says);
}

#[test]
fn data_directory_of_another_node() {
    let (place, other) = (Place::enrolled(), Place::enrolled());
    let before = checks::on_disk(&place.root());
    let (own, foreign) = (node_id(&place), node_id(&other));
    let data = place.root().join("data");
    let aside = place.host.directory().join("aside");
    fs::rename(&data, &aside).unwrap();
    fs::rename(other.root().join("data"), &data).unwrap();
    let why = format!("belongs to node {foreign}, and this is node {own}");
    let says = Says {
        what: "the data partition cannot be used",
        place: &data,
        why: &why,
        next: "give each node a root of its own, or put the right disk back",
    };
    refused(&place.host, place.command(), 1, says);
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&aside, &data).unwrap();
    comes_back(&place, &before);
}

#[test]
fn data_directory_without_a_journal() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let owner = node_id(&place);
    let journal = damage::journal(&place.root());
    let kept: Vec<Vec<u8>> = journal.iter().map(|path| fs::read(path).unwrap()).collect();
    journal.iter().for_each(|path| fs::remove_file(path).unwrap());
    let data = place.root().join("data");
    let why = format!("belongs to {owner}, and there is no enrolment journal");
    let says = Says {
        what: "did not start",
        place: &data,
        why: &why,
        next: "Bring the journal back, or give a new node a root of its own",
    };
    refused(&place.host, place.command(), 1, says);
    refused(&place.host, place.command(), 1, Says { place: &journal[0], ..says });
    journal.iter().zip(kept).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    comes_back(&place, &before);
}

#[test]
fn data_directory_of_somebody_else() {
    let place = Place::new();
    let data = place.root().join("data");
    fs::create_dir_all(data.join("thesis")).unwrap();
    fs::write(data.join("thesis/chapter.tex"), "years").unwrap();
    let found = data.join("thesis");
    let says = Says {
        what: "the data partition cannot be used",
        place: &found,
        why: "which this node did not make",
        next: "move it away, or give the node another root",
    };
    refused(&place.host, place.command(), 1, says);
}

#[test]
fn data_directory_that_is_gone() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let data = place.root().join("data");
    let aside = place.host.directory().join("aside");
    fs::rename(&data, &aside).unwrap();
    let says = Says {
        what: "the data partition cannot be used",
        place: &data,
        why: "is not formatted, though this node's journal says that it was",
        next: "put the right disk back, or restore it",
    };
    refused(&place.host, place.command(), 1, says);
    // An empty directory, as a mount point is when its disk is not mounted.
    fs::create_dir(&data).unwrap();
    refused(&place.host, place.command(), 1, says);
    fs::remove_dir(&data).unwrap();
    fs::rename(&aside, &data).unwrap();
    comes_back(&place, &before);
}

/// A file that proves who the node is, and what is said when it is not what it should be.
struct Proof {
    file: &'static str,
    what: &'static str,
    of_another_node: &'static str,
}

const NODE: Proof =
    Proof { file: "data/node/credentials", what: "the credentials of the node", of_another_node: "they belong to " };

const MEMBER: Proof = Proof {
    file: "data/etcd/credentials",
    what: "the credentials of the consensus member",
    of_another_node: "another node",
};

impl Proof {
    fn check(&self) {
        let (place, other) = (Place::enrolled(), Place::enrolled());
        let before = checks::on_disk(&place.root());
        let path: PathBuf = place.root().join(self.file);
        let whole = fs::read(&path).unwrap();
        let next = "bring back what the message names, from a backup if need be";

        fs::remove_file(&path).unwrap();
        let says = Says { what: self.what, place: &path, why: "the file is missing", next };
        fails(&place, says);

        fs::copy(other.root().join(self.file), &path).unwrap();
        fails(&place, Says { why: self.of_another_node, ..says });

        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        fails(&place, Says { what: "cannot be used", why: "it is damaged: ", ..says });

        fs::write(&path, whole).unwrap();
        comes_back(&place, &before);
    }
}

#[test]
fn credentials_of_the_node() {
    NODE.check();
}

#[test]
fn credentials_of_the_member() {
    MEMBER.check();
}

#[test]
fn data_of_the_member_that_are_gone_are_waited_for() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let member = place.root().join("data/etcd/data/member");
    let aside = place.host.directory().join("aside");
    fs::rename(&member, &aside).unwrap();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_condition("consensus-data-missing");
    let says = Says {
        what: "etcd is not started",
        place: member.parent().unwrap(),
        why: "the member's data are not in",
        next: "Make the data available again (is the right disk mounted?); nothing was changed.",
    };
    has_condition(&status, "consensus-data-missing", says);
    assert_eq!(status.state, NodeState::Joining);
    fs::rename(&aside, &member).unwrap();
    place.runs_well(node, &before);
}
