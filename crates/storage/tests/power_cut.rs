//! Power cuts: whatever is cut off where, a node comes back with everything that was acknowledged, and each sync in the
//! code is needed for that.

mod common;

use std::sync::Arc;

use common::{Life, Observed, Order, SEEDS, check_cuts, layout, new_disk};
use polis_storage::simulation::{Failure, SimulatedDisk, SyncSite};
use polis_storage::{Disk as _, DiskPath};

/// Syncs that are in this crate's own code, and not in a call that a workload makes under a name of its own. If one of
/// them is not in the recordings, nothing proves it.
const OWN_SITES: [&str; 11] = [
    "layout/esp",
    "layout/esp/polis",
    "journal/load",
    "data/format",
    "data/format/directories",
    "data/format/etcd/data",
    "data/format/partition",
    "data/partition/load",
    "etcd/credentials/load",
    "node/credentials/load",
    "node/roles/load",
];

/// Syncs of pairs of files that are not on FAT: there the file was durable before it had its name, and reading a pair need not sync
/// more than the directory. The pairs on FAT are read by the same code.
const NEEDED_ON_FAT_ONLY: [&str; 1] = ["node/roles/load (file)"];

/// A first start of a node, and what it acknowledged by when.
fn whole_life() -> Life {
    let disk = new_disk();
    let mut life = Life::new(Arc::clone(&disk));
    life.first_start().unwrap();
    life
}

/// First starts that died at each of their operations, each followed by a second one on what a process sees then.
fn killed_lives() -> Vec<Life> {
    let operations = whole_life().disk.position();
    let mut lives = Vec::new();
    for killed_at in 0..operations {
        for order in [Order::Forward, Order::Backward] {
            let disk = new_disk();
            disk.fail_from(killed_at, Failure::Medium);
            let mut life = Life::new(Arc::clone(&disk));
            life.first_start().unwrap_err();
            disk.cure();
            life.second_start(order).unwrap();
            lives.push(life);
        }
    }
    lives
}

#[test]
fn a_power_cut_at_any_operation_takes_nothing_that_was_acknowledged() {
    let life = whole_life();
    let operations = life.disk.position();
    let checked = check_cuts(&life, &life.disk.recording()).unwrap();
    println!("{operations} operations, {SEEDS} seeds, {checked} power cuts");
    assert!(operations > 60, "the workload was not recorded: {operations} operations");
}

#[test]
fn a_power_cut_after_a_kill_takes_nothing_that_the_second_start_has_seen() {
    let mut checked = 0;
    for life in killed_lives() {
        checked += check_cuts(&life, &life.disk.recording()).unwrap();
    }
    println!("{checked} power cuts");
}

#[test]
fn without_any_one_sync_something_acknowledged_is_lost() {
    let life = whole_life();
    let killed = killed_lives();
    let sites: Vec<SyncSite> = {
        let mut sites = life.disk.recording().sync_sites();
        for life in &killed {
            sites.extend(life.disk.recording().sync_sites());
        }
        sites.into_iter().collect()
    };
    for own in OWN_SITES {
        assert!(sites.iter().any(|site| site.site == own), "{own} is in no recording");
    }
    let mut unproven = Vec::new();
    for site in sites {
        let fails = |life: &Life| {
            let recording = life.disk.recording();
            if recording.sync_sites().contains(&site) {
                check_cuts(life, &recording.without_sync(site)).err()
            } else {
                None
            }
        };
        match std::iter::once(&life).chain(&killed).find_map(fails) {
            Some(loss) => println!("{site} is needed; without it: {loss}"),
            None => unproven.push(site.to_string()),
        }
    }
    assert_eq!(unproven, NEEDED_ON_FAT_ONLY, "nothing fails without these syncs");
}

#[test]
fn a_root_is_made_durably() {
    let disk = SimulatedDisk::default();
    let path = DiskPath::parse("var/lib/polis").unwrap();
    polis_storage::durable::create_directories(&disk, "root/create", &path, 0o700).unwrap();
    let recording = disk.recording();
    let survives = |recording: &polis_storage::simulation::Recording| {
        (0..SEEDS).all(|seed| recording.power_cut(recording.operations.len(), seed).unwrap().get(&path).is_some())
    };
    assert!(survives(&recording));
    for site in recording.sync_sites() {
        assert!(!survives(&recording.without_sync(site)), "{site} is not needed");
        println!("{site} is needed; without it: the root is lost");
    }
}

#[test]
fn a_node_goes_on_after_each_failed_operation_of_a_start() {
    let operations = whole_life().disk.position();
    for failure in [Failure::Full, Failure::Forbidden, Failure::Medium] {
        for failing in 0..operations {
            let disk = new_disk();
            disk.fail_once(failing, failure);
            let mut life = Life::new(Arc::clone(&disk));
            let first = life.first_start();
            disk.cure();
            life.second_start(Order::Forward).unwrap_or_else(|error| panic!("{failing} {failure:?}: {error}"));
            assert!(first.is_err(), "operation {failing} did not happen");
            let observed = Observed::start(&disk).unwrap();
            assert!(observed.at_least(life.acknowledged()).is_ok(), "{failing} {failure:?}");
        }
    }
}

#[test]
fn stale_temporaries_are_swept_and_nothing_else_is() {
    let life = whole_life();
    let before = life.disk.image();
    let inside = ["", "esp", "esp/polis", "data", "data/etcd", "data/node"];
    for directory in inside {
        let directory = DiskPath::parse(directory).unwrap();
        for name in [format!(".roles.0.{:032x}.polis-tmp", 7), ".roles.0.polis-tmp".to_owned()] {
            life.disk.create_exclusive(&directory.child(&name).unwrap(), 0o600, &[9; 9000]).unwrap();
        }
    }
    Observed::start(&life.disk).unwrap();
    let left: Vec<String> =
        (life.disk.image().files().iter()).filter(|path| before.get(path).is_none()).map(ToString::to_string).collect();
    let expected: Vec<String> = inside
        .iter()
        .map(|directory| DiskPath::parse(directory).unwrap().child(".roles.0.polis-tmp").unwrap().to_string())
        .collect();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(left), sorted(expected), "only the exact pattern is swept");
    assert!(layout(&life.disk).esp.polis.directory.exists().unwrap());
}
