//! Nodes that can unseal their record and lack the cluster's half of their key: they show themselves with their join key.

use std::fs;

use polis_control::NodeState;
use polis_testkit::damage;
use polis_testkit::node_data::journal;

use crate::place::{Place, fails, unchanged};

/// Names of the two files of a node's recovery blob.
const BLOB: [&str; 2] = ["esp/polis/recovery.0", "esp/polis/recovery.1"];

/// Name of the condition of a node that waits for others to open its data.
const LOCKED: &str = "data-locked";

/// Two of three machines are gone for good. What the third has opens with the words, and with nothing less.
#[test]
fn a_member_of_three_whose_peers_never_return_is_opened_by_the_words() {
    let mut place = Place::of(3);
    let key = place.key();
    place.found_with(&key);
    place.cluster.grow();
    place.wait_blobs();
    let ids = [0, 1, 2].map(|number| place.cluster.id(number));
    place.cluster.node(0).wait("a key that is split, and no copy of it", |status| {
        status.cold_start.as_ref().and_then(|cold_start| cold_start.split.as_ref()).is_some_and(|split| split.verified)
    });
    place.wait("member 0 keeps no copy of its key", |place| {
        journal(&place.root(0)).is_some_and(|found| found.cluster_unlock_key.is_none())
    });
    place.wait_blobs();
    let _ = place.cluster.polis(&format!("node set label {} kept=yes", ids[0])).succeeds();
    place.cluster.kill_all();

    place.cluster.start(0);
    let _ = place.cluster.node(0).wait_condition(LOCKED);
    let before = place.kept(0);
    let other = place.key();
    fails(&place.unlock(0, &other.words, None), 1, &["the words do not open it", &other.fingerprint, &key.fingerprint]);
    let swapped = place.changed_words(&key, |words| words.swap(2, 5));
    let run = place.unlock(0, &swapped, None);
    assert_eq!(run.code, Some(1), "{run:#?}");
    // The checksum of the words sees all but one of 256 such mistakes, and the name of the key the others.
    assert!(run.stderr.contains("checksum") || run.stderr.contains("do not open it"), "{run:#?}");
    let unknown = place.changed_words(&key, |words| words[7] = "polis".to_owned());
    fails(&place.unlock(0, &unknown, None), 1, &["word 8"]);
    unchanged(&before);

    let opened = place.unlock(0, &key.words, None).succeeds();
    for part in [&ids[0], "its own key", "its data are open"] {
        assert!(opened.stdout.contains(part), "{part} is missing in {opened:#?}");
    }
    let _ = place
        .cluster
        .node(0)
        .wait("open data", |status| status.conditions.iter().all(|condition| condition.name != LOCKED));
    let again = place.unlock(0, &key.words, None).succeeds();
    assert!(again.stdout.contains("there is nothing to do"), "{again:#?}");
    // The others do come back after all, and it is the same cluster.
    for number in [1, 2] {
        place.cluster.start(number);
    }
    for number in 0..3 {
        let _ = place.cluster.node(number).wait_state(NodeState::Running);
    }
    let nodes = place.cluster.wait_nodes("the label is there", |nodes| {
        nodes.iter().any(|node| node["node_id"] == ids[0].as_str() && node["labels"]["kept"] == "yes")
    });
    assert_eq!(nodes.len(), 3);
}

/// Neither of two keeps a copy of its key once that was confirmed. One is gone for good: the words stand in for it.
#[test]
fn of_two_that_are_confirmed_one_needs_the_other_or_the_words() {
    let mut place = Place::of(2);
    let key = place.key();
    place.found_with(&key);
    place.cluster.grow();
    let _ = place.cluster.polis("cluster confirm-two").succeeds();
    for number in [0, 1] {
        place.wait("the member keeps no copy of its key", |place| {
            journal(&place.root(number)).is_some_and(|found| found.cluster_unlock_key.is_none())
        });
    }
    place.wait_blobs();
    place.cluster.kill_all();
    place.cluster.start(0);
    let _ = place.cluster.node(0).wait_condition(LOCKED);
    let _ = place.unlock(0, &key.words, None).succeeds();
    let _ = place
        .cluster
        .node(0)
        .wait("open data", |status| status.conditions.iter().all(|condition| condition.name != LOCKED));
    // The other opens by this one.
    place.cluster.start(1);
    for number in [0, 1] {
        let _ = place.cluster.node(number).wait_state(NodeState::Running);
    }
}

/// What is offered is the node's own blob, and no other is.
#[test]
fn a_blob_of_another_or_none_opens_nothing_and_loses_nothing() {
    let (mut place, key) = Place::alone();
    let (stranger, _) = Place::alone();
    place.cluster.kill(0);
    damage::other_cluster_unlock_key(&place.root(0));
    let own = BLOB.map(|name| fs::read(place.root(0).join(name)).ok());
    let put = |place: &Place, blob: &[Option<Vec<u8>>; 2]| {
        for (name, bytes) in BLOB.iter().zip(blob) {
            let path = place.root(0).join(name);
            match bytes {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::remove_file(path).unwrap_or_default(),
            }
        }
    };
    let foreign = BLOB.map(|name| fs::read(stranger.root(0).join(name)).ok());
    let damaged = [Some(b"damaged".to_vec()), Some(b"damaged".to_vec())];
    let table = [(foreign, "is another's"), (damaged, "cannot be used"), ([None, None], "no recovery blob")];
    for (blob, says) in table {
        put(&place, &blob);
        place.cluster.start(0);
        let _ = place.cluster.node(0).wait_condition("data-keys-wrong");
        let before = place.kept(0);
        fails(&place.unlock(0, &key.words, None), 1, &["no recovery blob", says]);
        unchanged(&before);
        place.cluster.kill(0);
    }
    put(&place, &own);
    place.cluster.start(0);
    let _ = place.cluster.node(0).wait_condition("data-keys-wrong");
    let _ = place.unlock(0, &key.words, None).succeeds();
    let _ = place.cluster.node(0).wait_state(NodeState::Running);
}

/// The blob is of what the node has now: after its key was replaced, and after the recovery key was.
#[test]
fn the_words_open_what_the_node_has_now() {
    let (mut place, first) = Place::alone();
    let id = place.cluster.id(0);
    let _ = place.cluster.polis(&format!("node rekey {id}")).succeeds();
    let second = place.key();
    let _ = place.cluster.polis_with("cluster recovery-key set", &[&second.public]).succeeds();
    place.wait_blobs();
    place.cluster.kill(0);
    damage::other_cluster_unlock_key(&place.root(0));
    place.cluster.start(0);
    let _ = place.cluster.node(0).wait_condition("data-keys-wrong");
    fails(&place.unlock(0, &first.words, None), 1, &["the words do not open it", &second.fingerprint]);
    let _ = place.unlock(0, &second.words, None).succeeds();
    let _ = place.cluster.node(0).wait_state(NodeState::Running);

    // And again after that: what the journal had wrong came into order by itself.
    let _ = place.cluster.polis(&format!("node rekey {id}")).succeeds();
    place.wait_blobs();
    place.cluster.kill(0);
    place.cluster.start(0);
    let _ = place.cluster.node(0).wait_state(NodeState::Running);
}
