//! Nodes that cannot unseal their record: they show themselves with a fresh key, and its fingerprint has to be read on the node itself.

use std::fs;

use polis_control::NodeState;
use polis_testkit::damage;

use crate::place::{Place, fails, shown_fingerprint, unchanged};

/// Name of the condition of a node that cannot unseal its record.
const SEALED: &str = "data-sealed";

#[test]
fn a_node_whose_record_is_spoiled_comes_back_by_words_and_fingerprint() {
    let (mut place, key) = Place::alone();
    let id = place.cluster.id(0);
    let _ = place.cluster.polis(&format!("node set label {id} kept=yes")).succeeds();
    place.cluster.kill(0);
    for file in damage::journal(&place.root(0)) {
        fs::write(file, b"spoiled").unwrap();
    }
    place.cluster.start(0);
    let fingerprint = shown_fingerprint(&place.cluster.node(0).wait_condition(SEALED), SEALED);
    place.wait("the fingerprint is in the log as well", |place| place.cluster.node(0).log().contains(&fingerprint));
    let before = place.kept(0);
    fails(&place.unlock(0, &key.words, None), 1, &["another key", "on the node's own console", "--fingerprint"]);
    fails(&place.unlock(0, &key.words, Some(&"0".repeat(32))), 1, &["neither", "a node that starts anew"]);
    let other = place.key();
    fails(&place.unlock(0, &other.words, Some(&fingerprint)), 1, &["the words do not open it", &key.fingerprint]);
    unchanged(&before);

    // Each start makes a key of its own.
    place.cluster.kill(0);
    place.cluster.start(0);
    let next = shown_fingerprint(&place.cluster.node(0).wait_condition(SEALED), SEALED);
    assert_ne!(next, fingerprint);
    fails(&place.unlock(0, &key.words, Some(&fingerprint)), 1, &["neither"]);
    let opened = place.unlock(0, &key.words, Some(&next)).succeeds();
    assert!(opened.stdout.contains("sealed to the present state"), "{opened:#?}");
    let status = place.cluster.node(0).wait_state(NodeState::Running);
    assert_eq!(status.node_id.as_ref(), Some(&id));
    place.cluster.wait_nodes("the label is there", |nodes| nodes[0]["labels"]["kept"] == "yes");

    // Nobody is needed any more.
    place.cluster.kill(0);
    place.cluster.start(0);
    let status = place.cluster.node(0).wait_state(NodeState::Running);
    assert_eq!(status.node_id.as_ref(), Some(&id));
}

/// The record comes back and the data are another's: nothing is written.
#[test]
fn without_data_that_open_no_record_is_taken() {
    let (mut place, key) = Place::alone();
    place.cluster.kill(0);
    for file in damage::journal(&place.root(0)) {
        fs::write(file, b"spoiled").unwrap();
    }
    let (encrypted, aside) = (place.root(0).join("encrypted"), place.root(0).join("aside"));
    fs::rename(&encrypted, &aside).unwrap();
    place.cluster.start(0);
    let fingerprint = shown_fingerprint(&place.cluster.node(0).wait_condition(SEALED), SEALED);
    let before = place.kept(0);
    fails(&place.unlock(0, &key.words, Some(&fingerprint)), 1, &["refused", "is not formatted"]);
    unchanged(&before);
    place.cluster.kill(0);
    fs::rename(&aside, &encrypted).unwrap();
    place.cluster.start(0);
    let fingerprint = shown_fingerprint(&place.cluster.node(0).wait_condition(SEALED), SEALED);
    let _ = place.unlock(0, &key.words, Some(&fingerprint)).succeeds();
    let _ = place.cluster.node(0).wait_state(NodeState::Running);
}
