//! All members are killed at a random instant while a client writes, and started in a random order.

use std::time::{Duration, Instant};

use polis_testkit::seed::{Random, is_soak};
use polis_testkit::world;

use crate::scene::Scene;
use crate::writer::Writer;

/// Longest time that a client writes before the power goes.
const LONGEST_WRITING: Duration = Duration::from_millis(1_500);

/// Longest time between the starts of two nodes, as machines are not equally fast.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// Longest time after which the power goes again while the nodes are still starting.
const LONGEST_FLICKER: Duration = Duration::from_secs(3);

/// Of so many failures of power, one is followed by another before all are back.
const FLICKERS_IN: u64 = 4;

/// Failures of power of a cluster of three, and of each other size; in a short run and in a long one.
const OF_THREE: (usize, usize) = (20, 100);
const OF_OTHERS: (usize, usize) = (3, 10);

/// Sizes at which others are tried. A cluster of four is not less likely to fail than they; it is one of those that are grown through.
const SIZES: [usize; 4] = [1, 2, 5, 7];

/// The count for this run.
fn of_this_run((short, long): (usize, usize)) -> usize {
    if is_soak() { long } else { short }
}

#[test]
fn three_members_come_back_from_a_power_failure_at_any_instant() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let mut scene = Scene::of(3);
    let mut writer = scene.writer();
    for round in 1..=of_this_run(OF_THREE) {
        power_failure(&mut scene, &mut writer, &mut random, round);
    }
    scene.wait_settled();
}

#[test]
fn clusters_of_every_size_come_back_while_they_grow() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let mut scene = Scene::founded(SIZES[SIZES.len() - 1]);
    let mut writer = scene.writer();
    for size in SIZES {
        let began = Instant::now();
        scene.grow_to(size);
        scene.wait_settled();
        println!("{size} members after {:.1} s", began.elapsed().as_secs_f64());
        for round in 1..=of_this_run(OF_OTHERS) {
            power_failure(&mut scene, &mut writer, &mut random, round);
        }
    }
    scene.wait_settled();
}

/// Neither of two keeps a copy of its key once that was confirmed: they open each other. That holds again when a third has come and gone.
#[test]
fn two_that_are_confirmed_open_each_other_after_a_power_failure_at_any_instant() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let mut scene = Scene::founded(3);
    scene.grow_to(2);
    scene.wait_settled();
    scene.confirm_two();
    let mut writer = scene.writer();
    let mut fail = |scene: &mut Scene| {
        scene.wait_settled();
        for round in 1..=of_this_run(OF_OTHERS) {
            power_failure(scene, &mut writer, &mut random, round);
        }
    };
    fail(&mut scene);
    scene.grow_to(3);
    fail(&mut scene);
    scene.shrink();
    fail(&mut scene);
    scene.wait_settled();
}

/// The power of all fails while a client writes, and all come back with what was acknowledged.
fn power_failure(scene: &mut Scene, writer: &mut Writer, random: &mut Random, round: usize) {
    let all = scene.all();
    let writing = writer.begin(scene.addresses(&all));
    std::thread::sleep(random.span(LONGEST_WRITING));
    scene.power_cut();
    let writes = writer.end(writing);
    let order = scene.shuffled(random);
    start(scene, &order, random);
    let flickers = random.below(FLICKERS_IN) == 0;
    if flickers {
        std::thread::sleep(random.span(LONGEST_FLICKER));
        scene.power_cut();
        start(scene, &order, random);
    }
    let began = Instant::now();
    let nodes = scene.wait_back(&all);
    writer.check(&nodes);
    println!(
        "{} members, round {round}: {writes} writes, started as {order:?}{}, back after {:.1} s",
        all.len(),
        if flickers { ", twice" } else { "" },
        began.elapsed().as_secs_f64()
    );
}

fn start(scene: &mut Scene, order: &[usize], random: &mut Random) {
    for number in order {
        scene.power_on(&[*number]);
        std::thread::sleep(random.span(LONGEST_PAUSE));
    }
}
