//! What people and time do to machines that are off: one that was removed is switched on first, one has the ESP of last week, two have
//! each other's data, all have other addresses.

use std::fs;
use std::path::{Path, PathBuf};

use polis_testkit::cluster::health;
use polis_testkit::node_data::journal;
use polis_testkit::seed::Random;
use polis_testkit::snapshot::Snapshot;
use polis_testkit::{NodeProcess, checks, glance, world};

use crate::scene::{LOCKED, Scene, copy};

/// First of the last octets of the addresses that nodes move to. Nobody of a world has them.
const OTHER_ADDRESSES: u8 = 60;

/// What a node has its data in.
const DATA: [&str; 2] = ["data", "encrypted"];

#[test]
fn a_removed_node_that_comes_back_first_opens_nothing_and_blocks_nobody() {
    if !world::available() {
        return;
    }
    const REMOVED: usize = 3;
    let mut random = Random::for_this_run();
    let mut scene = Scene::of(4);
    let mut writer = scene.writer();
    let id = scene.cluster.id(REMOVED);
    scene.cluster.kill(REMOVED);
    let _ = scene.cluster.wait_nodes("it is missed", |nodes| health(nodes, &id) == Some("HEARTBEAT_TIMEOUT"));
    let _ = scene.polis(&format!("node remove role ConsensusMember {id}"));
    let _ = scene.polis(&format!("node delete {id} --bypass-not-decommissioned"));
    scene.members = REMOVED;
    scene.wait_settled();
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut_and_rest();
    writer.end(writing);

    let host = &scene.cluster.hosts[REMOVED];
    let mut removed = host.spawn(host.command());
    let _ = removed.wait_condition(LOCKED);
    for number in scene.shuffled(&mut random) {
        scene.power_on(&[number]);
        assert!(!scene.is_open(REMOVED), "{}", removed.log());
    }
    let nodes = scene.wait_back(&scene.all());
    writer.check(&nodes);
    assert!(!scene.is_open(REMOVED), "{}", removed.log());
    // The cluster, which runs again, tells it that it was removed.
    let end = removed.wait_exit();
    let log = removed.log();
    assert!(end.code() == Some(1) && log.contains("removed from the cluster"), "{end}: {log}");
    assert!(!scene.is_open(REMOVED), "{log}");
    scene.wait_settled();
}

#[test]
fn a_member_with_the_esp_of_last_week_comes_back_with_the_others() {
    if !world::available() {
        return;
    }
    const OLD: usize = 1;
    let mut random = Random::for_this_run();
    let mut scene = Scene::founded(4);
    scene.grow_to(3);
    scene.wait_settled();
    let mut writer = scene.writer();
    let (esp, aside) = (scene.root(OLD).join("esp"), scene.cluster.directory().join("esp"));
    // Copied while it is off, as an image is.
    scene.power_cut_and_rest();
    copy(&esp, &aside);
    scene.power_on(&scene.shuffled(&mut random));
    scene.wait_settled();

    // Then its key is another, and so are the members.
    let id = scene.cluster.id(OLD);
    let _ = scene.polis(&format!("node rekey {id} --timeout 60s"));
    scene.grow_to(4);
    scene.wait_settled();
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut_and_rest();
    writer.end(writing);
    let epoch = |root: &Path| journal(root).expect("it has a journal").highest_epoch;
    let newest = epoch(&scene.root(OLD));
    copy(&aside, &esp);
    assert!(epoch(&scene.root(OLD)) < newest, "the ESP is not an older one");
    scene.power_on(&scene.shuffled(&mut random));
    let nodes = scene.wait_back(&scene.all());
    writer.check(&nodes);
    scene.wait_settled();
    // It has caught up: the next failure of power is like any other.
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut();
    writer.end(writing);
    scene.power_on(&scene.shuffled(&mut random));
    let nodes = scene.wait_back(&scene.all());
    writer.check(&nodes);
}

#[test]
fn data_that_were_swapped_are_not_opened_and_not_harmed() {
    if !world::available() {
        return;
    }
    const SWAPPED: [usize; 2] = [1, 2];
    let mut scene = Scene::of(3);
    let mut writer = scene.writer();
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut_and_rest();
    writer.end(writing);
    let roots = SWAPPED.map(|number| scene.root(number));
    swap(&roots, &scene.cluster.directory().join("swapped"));
    let before = roots.clone().map(|root| Snapshot::of(&root.join("encrypted/cipher")));
    scene.power_on(&[0]);
    let mut nodes = SWAPPED.map(|number| {
        let host = &scene.cluster.hosts[number];
        host.spawn(host.command())
    });
    for (number, node) in SWAPPED.into_iter().zip(&mut nodes) {
        let said = what_it_says(node, &scene.root(number));
        assert!(said.contains("belongs to node"), "{said}");
        assert!(!scene.is_open(number), "{said}");
    }
    drop(nodes);
    scene.power_cut_and_rest();
    for before in before {
        assert_eq!(before.changes(), Vec::<String>::new());
    }
    swap(&roots, &scene.cluster.directory().join("swapped"));
    scene.power_on(&scene.all());
    let nodes = scene.wait_back(&scene.all());
    writer.check(&nodes);
    scene.wait_settled();
}

#[test]
fn members_that_were_all_moved_while_they_were_off_open_each_other() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let mut scene = Scene::of(3);
    let mut writer = scene.writer();
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut();
    writer.end(writing);
    // No address that anybody knew is of use.
    for number in 0..3_u8 {
        scene.world.readdress(number.into(), OTHER_ADDRESSES + number);
    }
    scene.power_on(&scene.shuffled(&mut random));
    let nodes = scene.wait_back(&scene.all());
    writer.check(&nodes);
    scene.wait_settled();
}

/// What a node says when it ends, or has a fault that is not that it waits for others.
fn what_it_says(node: &mut NodeProcess, root: &Path) -> String {
    let faults = || {
        let status = glance::status(root)?;
        let has_fault = checks::faults(&status).iter().any(|name| *name != LOCKED);
        has_fault.then(|| format!("{:?}", status.conditions))
    };
    match node.wait_exit_or("a fault", || faults().is_some_and(|text| text.contains("belongs to node"))) {
        Some(_) => node.log(),
        None => faults().unwrap_or_default(),
    }
}

/// Exchanges the data of two nodes that are off.
fn swap([one, other]: &[PathBuf; 2], aside: &Path) {
    for name in DATA {
        fs::rename(one.join(name), aside).unwrap();
        fs::rename(other.join(name), one.join(name)).unwrap();
        fs::rename(aside, other.join(name)).unwrap();
    }
}
