//! `polis node rekey` that is interrupted: a node that is killed at any point of it comes back with a key that opens, the change is
//! carried to its end, and then the old key opens nothing.
//!
//! A node alone at every second point, and the members of a cluster of three in turn at every fourth; with `POLIS_SOAK=1` the node
//! alone, and each member, at each point.

#![cfg(feature = "fault-points")]
#![forbid(unsafe_code)]

mod points;
mod scene;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use points::{ALONE, OF_THREE, Site, places};
use polis_testkit::seed::is_soak;
use scene::Scene;

/// Nodes alone that are worked on at a time. They wait for disks and elections more than for a processor.
const WORKERS: usize = 3;
/// Of so many places one is died at in a short run, by a node alone and by the members of a cluster.
const SHORT_STEP_ALONE: usize = 2;
const SHORT_STEP_OF_THREE: usize = 4;

#[test]
fn a_recorded_change_passes_exactly_the_points_of_the_table() {
    for (count, sites) in [(1, ALONE), (3, OF_THREE)] {
        let mut scene = Scene::new(count);
        // What the leader does for it shows only when it leads itself.
        let passed = scene.recorded(0);
        let mut unknown: Vec<&String> = passed.iter().filter(|point| points::is_of_a_change(point)).collect();
        for site in sites {
            for point in site.points() {
                let times = unknown.iter().filter(|passed| ***passed == point).count();
                let is_elsewhere = count > 1 && site.is_of_the_leader() && times == 0;
                assert!(times == site.times || is_elsewhere, "{point}, {times} times: {passed:?}");
                unknown.retain(|passed| **passed != point);
            }
        }
        assert_eq!(unknown, Vec::<&String>::new(), "{count}");
    }
}

#[test]
fn a_node_alone_that_is_killed_at_any_point_of_the_change_ends_with_a_key_that_opens() {
    let cases = places_of_this_run(ALONE, SHORT_STEP_ALONE);
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
    let mut scene = Scene::new(3);
    let began = Instant::now();
    let mut failed = Vec::new();
    let mut count = 0;
    for (turn, fault) in places_of_this_run(OF_THREE, SHORT_STEP_OF_THREE).iter().enumerate() {
        let members = if is_soak() { vec![0, 1, 2] } else { vec![turn % 3] };
        for member in members {
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

/// All places to die at with `POLIS_SOAK=1`, otherwise every one in so many.
fn places_of_this_run(sites: &'static [Site], step: usize) -> Vec<String> {
    places(sites).into_iter().step_by(if is_soak() { 1 } else { step }).collect()
}

/// Runs a case and prints a line for it.
fn is_well(name: &str, case: impl FnOnce()) -> bool {
    let began = Instant::now();
    let is_well = catch_unwind(AssertUnwindSafe(case)).is_ok();
    println!("{name:<60} {}, {} ms", if is_well { "well" } else { "FAILED" }, began.elapsed().as_millis());
    is_well
}
