//! Nothing that lasts is done without a fault point: compared with a trace of the system calls, and with etcd's own counts.

use std::fs;

use polis_control::NodeState;
use polis_testkit::store::Store;
use polis_testkit::trace;

use crate::Place;
use crate::points::{FIRST_START, LATER_START, Site, Start, Steps};
use crate::recorded::compare;

#[test]
fn every_rename_sync_and_transaction_stands_between_two_points() {
    let place = Place::new();
    for start in [&FIRST_START, &LATER_START] {
        let file = place.host.directory().join("trace");
        let mut node = place.host.spawn(place.logged(place.host.traced_command(&file)));
        node.wait_state(NodeState::Running);
        let asked = Store::of_node(&place.root()).changes_asked();
        let passed_by_then = place.passed();
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

        let transactions = transactions(start);
        let points = passed_by_then.iter().filter(|point| point.ends_with("/before")).count();
        assert_eq!(points, transactions);
        assert_eq!(asked.values().sum::<u64>(), transactions as u64, "{asked:?}");
    }
}

/// System calls that the main line of a start makes to make things last, without those that settle.
fn calls_of(start: &Start) -> usize {
    let calls = |site: &Site| match site.steps {
        // The file, its new name, and its directory.
        Steps::Write => 3,
        Steps::Directory => 1,
        Steps::Settle | Steps::Transaction => 0,
    };
    start.sites.iter().map(calls).sum()
}

fn transactions(start: &Start) -> usize {
    let is_transaction = |site: &&Site| match site.steps {
        Steps::Transaction => true,
        Steps::Write | Steps::Directory | Steps::Settle => false,
    };
    start.sites.iter().filter(is_transaction).count()
}
