//! Nothing that lasts is done without a fault point: compared with a trace of the system calls, and with etcd's own counts.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use polis_control::NodeState;
use polis_testkit::host::PATIENCE;
use polis_testkit::store::Store;
use polis_testkit::{Steps, trace};

use crate::Place;
use crate::points::{Beside, Site, Start};
use crate::recorded::compare;
use crate::tables::{first_start, later_start};

#[test]
fn every_rename_sync_and_transaction_stands_between_two_points() {
    let place = Place::new();
    for start in [&first_start(), &later_start()] {
        let file = place.host.directory().join("trace");
        let mut node = place.host.spawn(place.logged(place.host.traced_command(&file)));
        node.wait_state(NodeState::Running);
        place.wait_rest(&mut node, start);
        let (asked, points) = asked_in_a_quiet_moment(&place);
        assert_eq!(asked.values().sum::<u64>(), points, "{asked:?}");
        assert!(points >= transactions(start) as u64);
        assert!(node.stop().success());
        let passed = place.passed();
        compare(start, &passed);

        let findings = trace::check(&fs::read_to_string(&file).expect("there is a trace"), &place.fault_log());
        println!(
            "{}: {} points, {} calls that last, etcd was asked for {asked:?}",
            start.name, findings.points, findings.calls
        );
        assert_eq!(findings.complaints, Vec::<String>::new());
        // The checker has seen every point and, as a lower bound, every call that the table stands for.
        assert_eq!(findings.points, passed.len());
        assert!(findings.calls >= calls_of(start), "{findings:?}");
    }
}

/// What etcd was asked for that could change something, and how many points say that it was to be. Both count the same only
/// while nothing is under way, so it is looked until nothing was, from before etcd was asked until after.
fn asked_in_a_quiet_moment(place: &Place) -> (BTreeMap<String, u64>, u64) {
    let deadline = Instant::now() + PATIENCE;
    let counts = || {
        let passed = place.passed();
        let count = |step: &str| passed.iter().filter(|point| point.ends_with(step)).count() as u64;
        (count("/before"), count("/after"))
    };
    loop {
        let begun = counts();
        let asked = Store::of_node(&place.root()).changes_asked();
        if begun.0 == begun.1 && counts() == begun {
            return (asked, begun.0);
        }
        assert!(Instant::now() < deadline, "something is always under way");
    }
}

/// How often each site is passed for sure until the node has come to rest.
fn for_sure(start: &Start) -> impl Iterator<Item = (&Site, usize)> {
    let beside = start.beside.iter().map(|Beside { site, often }| (site, often.until_rest().0));
    start.sites.iter().map(|site| (site, 1)).chain(beside)
}

/// System calls that a start makes for sure to make things last, without those that settle.
fn calls_of(start: &Start) -> usize {
    let calls = |(site, times): (&Site, usize)| match site.steps {
        // The file, its new name, the file under it, and its directory.
        Steps::Write => 4 * times,
        Steps::Directory | Steps::Removal => times,
        Steps::Settle | Steps::Call | Steps::Child => 0,
    };
    for_sure(start).map(calls).sum()
}

/// Changes that a start asks etcd for, for sure.
fn transactions(start: &Start) -> usize {
    let transactions = |(site, times): (&Site, usize)| match site.steps {
        Steps::Call => times,
        Steps::Write | Steps::Directory | Steps::Removal | Steps::Settle | Steps::Child => 0,
    };
    for_sure(start).map(transactions).sum()
}
