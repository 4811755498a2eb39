//! Strangers call the unlock port of a member as fast as they can, from hosts of their own. They are refused, and a member is answered
//! as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polis_testkit::seed::is_soak;
use polis_testkit::unlock_caller::{Called, Flood, UnlockCaller};
use polis_testkit::{processes, world};

use crate::scene::Scene;

/// The member that is called, the one that calls as a member does, and the hosts on which strangers are.
const CALLED: usize = 0;
const CALLING: usize = 1;
const STRANGERS: [usize; 2] = [3, 4];

/// Connections of each of them at a time: as many as an address may have.
const CONNECTIONS: usize = 4;

/// Calls on each connection before the next one is made.
const CALLS: usize = 50;

/// Calls of a member that are measured, in a short run and in a long one.
const MEASURED: (usize, usize) = (60, 400);

/// Pause between them, which keeps it within what a member may ask.
const PAUSE: Duration = Duration::from_millis(60);

/// Most by which strangers may delay a member. 50 ms is the limit where each side has a processor and the build is optimized; here
/// both sides and other tests share two with one that is not.
const DELAY: Duration = Duration::from_millis(500);

#[test]
fn a_flood_from_strangers_is_refused_and_delays_no_member() {
    if !world::available() {
        return;
    }
    let mut scene = Scene::founded(5);
    scene.grow_to(3);
    scene.wait_settled();
    let called = scene.cluster.node(CALLED).id();
    let (root, address) = (scene.root(CALLING), scene.cluster.hosts[CALLED].ip());
    let quiet = member(&scene);

    let is_over = AtomicBool::new(false);
    let before = processes::processor_time(called).expect("it runs");
    let (flooded, floods) = std::thread::scope(|scope| {
        let floods = STRANGERS.map(|host| {
            let (host, stranger) = (scene.world.host(host), UnlockCaller::stranger(&root, address));
            let is_over = &is_over;
            scope.spawn(move || host.inside(|| stranger.flood(CONNECTIONS, CALLS, is_over)))
        });
        let flooded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| member(&scene)));
        is_over.store(true, Ordering::Relaxed);
        (flooded, floods.map(|flood| flood.join().expect("a stranger does not panic")))
    });
    let took = processes::processor_time(called).expect("it runs") - before;
    let flooded = flooded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let flood = floods.into_iter().fold(Flood::default(), |sum, flood| sum + flood);
    let delay = median(&flooded).saturating_sub(median(&quiet));
    println!(
        "{flood:?}; {:.0} refused a second of the member's processor time; a member is answered after {:?}, at most {:?}, \
         and when it is quiet after {:?}",
        flood.refused as f64 / took.as_secs_f64(),
        median(&flooded),
        flooded.last(),
        median(&quiet)
    );
    assert!(flood.refused > 0 && flood.answered == 0, "{flood:?}");
    assert!(delay < DELAY, "a member is delayed by {delay:?}");
    scene.wait_settled();
}

/// How long a member waits for the key, the shortest time first. It is never refused.
fn member(scene: &Scene) -> Vec<Duration> {
    let member = UnlockCaller::node(&scene.root(CALLING), scene.cluster.hosts[CALLED].ip());
    let count = if is_soak() { MEASURED.1 } else { MEASURED.0 };
    let mut took = scene.world.host(CALLING).inside(|| {
        let one = |_| {
            std::thread::sleep(PAUSE);
            let (called, took) = member.ask();
            assert_eq!(called, Called::Key, "after {took:?}");
            took
        };
        (0..count).map(one).collect::<Vec<_>>()
    });
    took.sort();
    took
}

fn median(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() / 2]
}
