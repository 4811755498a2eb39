//! Fewer than a quorum come back: nothing opens, for however long, and each says what it waits for. With one more, all that are there
//! open at once.

use std::time::{Duration, Instant};

use polis_testkit::seed::{Random, is_soak};
use polis_testkit::world;

use crate::scene::Scene;

/// How long too few members are watched. In a short run as long as each of them has asked the others a dozen times: it asks about every
/// second.
const SHORT_WATCH: Duration = Duration::from_secs(12);
const LONG_WATCH: Duration = Duration::from_secs(60);

/// Pause between two looks at members that are to stay locked.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Within which all are open once there are enough (cold-start.md, "Tests that convince").
const OPEN_WITHIN: Duration = Duration::from_secs(5);

#[test]
fn fewer_than_a_quorum_of_three_open_nothing_until_one_more_is_there() {
    if world::available() {
        too_few(&mut Scene::of(3), &mut Random::for_this_run());
    }
}

#[test]
fn five_come_back_without_two_and_fewer_open_nothing() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let mut scene = Scene::of(5);
    too_few(&mut scene, &mut random);

    // Two never return.
    let mut writer = scene.writer();
    let writing = writer.begin(scene.addresses(&scene.all()));
    scene.power_cut();
    writer.end(writing);
    let order = scene.shuffled(&mut random);
    let (here, lost) = order.split_at(3);
    scene.power_on(here);
    let nodes = scene.wait_back(here);
    writer.check(&nodes);
    println!("five members without {lost:?}: back");
    // They live on as a cluster does: they are written to, and survive the next failure of power.
    let writing = writer.begin(scene.addresses(here));
    scene.power_cut();
    writer.end(writing);
    scene.power_on(here);
    let nodes = scene.wait_back(here);
    writer.check(&nodes);
}

/// The power fails, and one member less than a quorum is there for a while.
fn too_few(scene: &mut Scene, random: &mut Random) {
    let quorum = scene.members / 2 + 1;
    let watch = if is_soak() { LONG_WATCH } else { SHORT_WATCH };
    scene.power_cut_and_rest();
    let order = scene.shuffled(random);
    let (few, rest) = order.split_at(quorum - 1);
    scene.power_on(few);
    // Each opens with the shares of as many others as are there now, and has those of all but itself.
    let need = u32::try_from(few.len()).expect("clusters are small");
    let counts = format!("{} of {need} shares", need - 1);
    for number in few {
        scene.wait_locked(*number, need - 1, need);
        let status = scene.node_status(*number);
        assert!(status.contains(&counts), "`polis node status` does not say {counts:?}:\n{status}");
    }
    let began = Instant::now();
    while began.elapsed() < watch {
        for number in 0..scene.members {
            assert!(!scene.is_open(number), "node {number} is open with {few:?} there; {}", scene.reports());
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    for number in few {
        scene.wait_locked(*number, need - 1, need);
    }

    let here = &order[..quorum];
    scene.power_on(&order[quorum - 1..quorum]);
    let took = scene.wait_open(here);
    println!("{} of {}: nothing opened for {watch:?}, all open {took:?} after one more", few.len(), scene.members);
    assert!(took < OPEN_WITHIN, "all open after {took:?}; {}", scene.reports());
    scene.wait_back(here);
    scene.power_on(&rest[1..]);
    scene.wait_settled();
}
