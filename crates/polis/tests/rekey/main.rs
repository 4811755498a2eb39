//! `polis node rekey` that is interrupted: a node that is killed at any point of it comes back with a key that opens, the change is
//! carried to its end, and then the old key opens nothing.
//!
//! Only `POLIS_SOAK=1` kills: a node alone, and each member of a cluster of three, at each point.

#![cfg(feature = "fault-points")]
#![forbid(unsafe_code)]

mod points;
mod scene;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use points::{SITES, places};
use polis_testkit::seed::is_soak;
use scene::Scene;

/// Nodes alone that are worked on at a time. They wait for disks and elections more than for a processor.
const WORKERS: usize = 3;

#[test]
fn a_recorded_change_passes_exactly_the_points_of_the_table() {
    let mut scene = Scene::new(1);
    let passed = scene.recorded(0);
    let mut unknown: Vec<&String> = passed.iter().filter(|point| points::is_of_a_change(point)).collect();
    for site in SITES {
        for point in site.points() {
            let times = unknown.iter().filter(|passed| ***passed == point).count();
            assert_eq!(times, site.times, "{point}: {passed:?}");
            unknown.retain(|passed| **passed != point);
        }
    }
    assert_eq!(unknown, Vec::<&String>::new());
}

#[test]
fn a_node_alone_that_is_killed_at_any_point_of_the_change_ends_with_a_key_that_opens() {
    if !is_asked_for() {
        return;
    }
    let cases = places();
    let queue = Mutex::new(cases.iter());
    let failed = Mutex::new(Vec::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut scene = None;
                loop {
                    let Some(fault) = queue.lock().unwrap().next() else { return };
                    let case = || scene.get_or_insert_with(|| Scene::new(1)).case(0, fault);
                    if !is_well(fault, case) {
                        scene = None;
                        failed.lock().unwrap().push(fault.clone());
                    }
                }
            });
        }
    });
    println!("rekey of a node alone: {} points, {:.1} s", cases.len(), began.elapsed().as_secs_f64());
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
}

#[test]
fn a_member_of_three_that_is_killed_at_any_point_of_the_change_ends_with_a_key_that_opens() {
    if !is_asked_for() {
        return;
    }
    let mut scene = Scene::new(3);
    let began = Instant::now();
    let mut failed = Vec::new();
    let mut count = 0;
    for fault in &places() {
        for member in [0, 1, 2] {
            count += 1;
            if !is_well(&format!("member {member}, {fault}"), || scene.case(member, fault)) {
                failed.push(format!("{member}: {fault}"));
                scene = Scene::new(3);
            }
        }
    }
    println!("rekey of a member of three: {count} cases, {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(failed, Vec::<String>::new());
}

/// Whether nodes are to be killed by the dozen. gocryptfs dies with its node, and once in some hundreds of kills it was seen to tear a block
/// that had been synced; until that is mended it is no test of what is promised here, and runs where somebody looks on.
fn is_asked_for() -> bool {
    if !is_soak() {
        eprintln!("skipped: it kills nodes with encrypted data by the dozen; POLIS_SOAK=1 runs it");
    }
    is_soak()
}

/// Runs a case and prints a line for it.
fn is_well(name: &str, case: impl FnOnce()) -> bool {
    let began = Instant::now();
    let is_well = catch_unwind(AssertUnwindSafe(case)).is_ok();
    println!("{name:<60} {}, {} ms", if is_well { "well" } else { "FAILED" }, began.elapsed().as_millis());
    is_well
}
