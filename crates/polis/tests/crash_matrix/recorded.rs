//! A recorded start passes the points of the table, all of them and no other.

use polis_testkit::checks::{self, OnDisk};

use crate::Place;
use crate::points::{FIRST_START, LAST_STATE, LATER_START, Start};

#[test]
fn each_start_passes_exactly_the_points_of_the_table() {
    let place = Place::new();
    for start in [&FIRST_START, &LATER_START] {
        let mut node = place.host.spawn(place.logged(place.host.command()));
        let status = node.wait_state(polis_control::NodeState::Running);
        checks::running(&place.root(), &status, &OnDisk::default());
        assert!(node.stop().success());
        checks::stopped(&place.host);
        compare(start, &place.passed());
    }
}

/// Compares the points of a start with the table.
pub(crate) fn compare(start: &Start, passed: &[String]) {
    let is_last_state = |point: &&String| point.rsplit_once('/').is_some_and(|(site, _)| site == LAST_STATE.name);
    let (beside, main): (Vec<&String>, Vec<&String>) = passed.iter().partition(is_last_state);
    assert_eq!(
        main,
        start.points().iter().collect::<Vec<_>>(),
        "the main line of the {} is not that of the table",
        start.name
    );

    let once: Vec<String> = LAST_STATE.points().collect();
    let (least, most) = start.last_state;
    assert!(beside.len().is_multiple_of(once.len()), "{beside:?}");
    assert!((least..=most).contains(&(beside.len() / once.len())), "the last state was written {beside:?}");
    for written in beside.chunks(once.len()) {
        assert_eq!(written, once.iter().collect::<Vec<_>>());
    }
}
