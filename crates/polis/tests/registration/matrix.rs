//! The matrix: for each place, let the node die there, start it again, and let the joiner come to its goal.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use polis_testkit::seed::is_soak;

use crate::points::{Place, places};
use crate::scene::{FOUNDER, JOINER, Scene};

/// Cases that run at a time. They wait for disks and elections more than for a processor.
const WORKERS: usize = 4;

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The node died there so often, and all ended well.
    Died(usize),
    /// The point was not passed, which was not certain.
    NotPassed,
}

#[test]
fn a_registration_that_is_interrupted_at_any_point_ends_well() {
    let began = Instant::now();
    let places = places(is_soak());
    let queue = Mutex::new(places.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut scene = None;
                loop {
                    let Some(place) = queue.lock().unwrap().next() else { return };
                    let began = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| case(scene.get_or_insert_with(Scene::new), place)));
                    if outcome.is_err() {
                        // What a failed case leaves is no ground for the next.
                        scene = None;
                    }
                    results.lock().unwrap().push((place, outcome.ok(), began.elapsed()));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let mut counts = BTreeMap::<&str, usize>::new();
    let mut failed = Vec::new();
    let mut deaths = 0;
    for (place, outcome, took) in &results {
        let verdict = match outcome {
            Some(Outcome::Died(times)) => {
                deaths += times;
                "died and ended well"
            }
            Some(Outcome::NotPassed) => "not passed",
            None => "FAILED",
        };
        *counts.entry(verdict).or_default() += 1;
        let name = name(place);
        println!("{name:<90} {:<12} {verdict}, {} ms", place.site.windows.join(" "), took.as_millis());
        if outcome.is_none() {
            failed.push(name);
        }
    }
    println!(
        "registration: {} places, {counts:?}, {deaths} deaths, {:.1} s",
        results.len(),
        began.elapsed().as_secs_f64()
    );
    assert!(failed.is_empty(), "{} of {} places failed: {failed:?}", failed.len(), results.len());
    assert_eq!(results.len(), places.len());
}

fn name(place: &Place) -> String {
    let who = match (place.is_together, place.site.node) {
        (true, FOUNDER) => "leader with joiner",
        (true, _) => "joiner with leader",
        (false, FOUNDER) => "leader",
        (false, _) => "joiner",
    };
    format!("{who}: {}", place.faults.join(", "))
}

fn case(scene: &mut Scene, place: &Place) -> Outcome {
    let (node, goal) = (place.site.node, place.site.goal);
    scene.plan(node, &place.faults, place.is_together);
    if node == FOUNDER {
        scene.restart_founder();
    }
    let id = scene.join(goal);
    if node == JOINER && place.site.is_certain {
        scene.wait_deaths(JOINER, place.faults.len());
    }
    scene.check(goal, &id);
    scene.clear(goal, &id);
    let died = scene.end_plan(node);
    // After the founder's first death the joiner, once it votes, may be the one that leads: what is left of a change of members is then
    // carried out there, where nobody dies. Besides, a call that was given up in that restless time may have been carried out
    // nevertheless; then nobody passes what follows it, and the repetition finds the work done.
    let least = if node == FOUNDER { 1 } else { place.faults.len() };
    assert!(died >= least || !place.site.is_certain, "it died {died} times: {:?}", place.faults);
    if died == 0 { Outcome::NotPassed } else { Outcome::Died(died) }
}
