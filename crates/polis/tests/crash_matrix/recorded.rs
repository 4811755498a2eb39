//! A recorded start passes the points of the table, all of them and no other.

use std::collections::HashMap;

use polis_testkit::Steps;
use polis_testkit::checks::{self, OnDisk};

use crate::Place;
use crate::points::{Beside, Start};
use crate::tables::{first_start, later_start};

#[test]
fn each_start_passes_exactly_the_points_of_the_table() {
    let place = Place::new();
    for start in [&first_start(), &later_start()] {
        let mut node = place.host.spawn(place.logged(place.host.command()));
        let status = node.wait_running();
        checks::running(&place.root(), &status, &OnDisk::default());
        place.wait_rest(&mut node, start);
        checks::leads(&place.root(), &node.wait_contact());
        // Long enough to see also what comes only later.
        let passed_later = || start.later().all(|point| place.passed().contains(&point));
        assert_eq!(node.wait_exit_or("what comes later", passed_later), None, "{}", node.log());
        assert!(node.stop().success());
        checks::stopped(&place.host);
        compare(start, &place.passed());
    }
}

/// Compares the points of a start that has come to rest, and was then stopped, with the table.
pub(crate) fn compare(start: &Start, passed: &[String]) {
    let main = start.points();
    let mut next = main.iter().peekable();
    // Two that read the same pass the same point; which of them it was makes no difference.
    let beside: Vec<&str> =
        passed.iter().filter(|point| next.next_if_eq(point).is_none()).map(String::as_str).collect();
    assert_eq!(next.peek(), None, "the main line of the {} is not that of the table: {passed:?}", start.name);

    let mut by_site = HashMap::<&str, Vec<&str>>::new();
    for point in &beside {
        let (site, step) = point.rsplit_once('/').expect("a point has a site and a step");
        by_site.entry(site).or_default().push(step);
    }
    for beside in &start.beside {
        let steps = by_site.remove(beside.site.name).unwrap_or_default();
        assert!(is_of_the_table(beside, &steps), "the {} passed {}/{steps:?}", start.name, beside.site.name);
    }
    assert!(by_site.is_empty(), "the {} passed what is not in the table: {by_site:?}", start.name);
}

/// Whether a site was passed in whole steps, and as often as the table says.
fn is_of_the_table(beside: &Beside, steps: &[&str]) -> bool {
    let names = beside.site.steps.names();
    let count = |name: &&str| steps.iter().filter(|step| *step == name).count();
    let times: Vec<usize> = names.iter().map(count).collect();
    let is_whole = match beside.site.steps {
        // Nobody writes the same thing at the same time as somebody else.
        Steps::Write | Steps::Directory | Steps::Removal => steps.chunks(names.len()).all(|written| written == names),
        Steps::Settle | Steps::Child => times.iter().all(|time| *time == times[0]),
        // A stop does not wait for what etcd was asked for.
        Steps::Call => times.is_sorted_by(|one, next| one >= next),
    };
    let (least, most) = beside.often.until_rest();
    is_whole && times.iter().all(|time| *time >= least && most.is_none_or(|most| *time <= most))
}
