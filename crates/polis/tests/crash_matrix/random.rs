//! Kills at random times.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_testkit::checks::{self, OnDisk};
use polis_testkit::processes;
use polis_testkit::seed::{Random, is_soak};
use polis_testkit::store::Store;

use crate::Place;

/// Kills in an ordinary run, and in a long one.
const KILLS: (u64, u64) = (20, 500);

/// Kills on one root before it is given up for a new one, so that first starts are hit too.
const KILLS_ON_ONE_ROOT: u64 = 10;

/// Most kills in a row without a start that is left to come to Running.
const KILLS_IN_A_ROW: u64 = 3;

/// Latest time of a kill after exec. A start takes 0.2 to 0.4 s, so some kills hit a node that has begun to run and finds out who
/// leads its cluster.
const LATEST: Duration = Duration::from_millis(600);

#[test]
fn a_node_that_is_killed_at_random_times_loses_nothing() {
    let mut random = Random::for_this_run();
    let kills = if is_soak() { KILLS.1 } else { KILLS.0 };
    let mut done = 0;
    while done < kills {
        done += one_root(&mut random, KILLS_ON_ONE_ROOT.min(kills - done));
    }
    println!("{done} random kills");
}

/// Kills one node up to `kills` times; returns how often.
fn one_root(random: &mut Random, kills: u64) -> u64 {
    let place = Place::new();
    let mut known = OnDisk::default();
    let mut written = BTreeMap::new();
    let mut done = 0;
    while done < kills {
        let in_a_row = (1 + random.below(KILLS_IN_A_ROW)).min(kills - done);
        for _ in 0..in_a_row {
            let node = place.host.start(&place.parameters);
            let delay = random.span(LATEST);
            std::thread::sleep(delay);
            println!("killed {} us after it was started", delay.as_micros());
            node.kill();
            processes::wait_until_gone(place.host.directory()).unwrap_or_else(|left| panic!("{left}"));
            known = compare(&known, checks::on_disk(&place.root()));
            done += 1;
        }
        let mut node = place.host.start(&place.parameters);
        let status = node.wait_running();
        let content = checks::running(&place.root(), &status, &known);
        for (key, value) in &written {
            assert_eq!(content.entries.get(key).map(|entry| &entry.value), Some(value), "{key} was acknowledged");
        }
        let (key, value) = (format!("test/{done}"), format!("written after kill {done}"));
        Store::of_node(&place.root()).put(&key, &value);
        written.insert(key, value.into_bytes());
        checks::leads(&place.root(), &node.wait_contact());
        // Half of the nodes that run are killed too, right after the acknowledgement.
        if random.below(2) == 0 {
            node.kill();
        } else {
            assert!(node.stop().success());
            checks::stopped(&place.host);
        }
        known = compare(&known, checks::on_disk(&place.root()));
    }
    done
}

/// What was durable stays, and stays the same.
fn compare(known: &OnDisk, now: OnDisk) -> OnDisk {
    if known.node_id.is_some() {
        assert_eq!(now.node_id, known.node_id, "it is another node than before");
    }
    if known.cluster_ca.is_some() {
        assert_eq!(now.cluster_ca, known.cluster_ca, "it is another cluster than before");
    }
    now
}
