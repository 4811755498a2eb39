//! The matrix: for each point of each start, die there, start again, and be whole.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use polis_testkit::store::Store;
use polis_testkit::{NodeData, StorageSecurity, checks, mounts, processes};

use crate::points::{Place as Point, Start};
use crate::tables::{first_start, later_start};
use crate::{Place, was_killed};

/// Cases that run at a time. Starts wait for disks and for etcd's election more than for a processor.
const WORKERS: usize = 4;

/// Longest time after the death of a node within which its etcd must be gone: the kernel kills it when the node dies, so this
/// is only the time that a loaded machine needs for it.
const ETCD_DEATH: Duration = Duration::from_secs(2);

/// How a case ended.
enum Outcome {
    /// It died there, and its etcd was gone after this time.
    Died(Duration),
    /// The start did not pass the point, which was not certain.
    NotPassed,
}

#[test]
fn a_first_start_that_is_killed_at_any_point_is_made_good() {
    run_matrix(&first_start(), || (), |(), point| first_case(point));
}

#[test]
fn a_later_start_that_is_killed_at_any_point_loses_nothing() {
    run_matrix(&later_start(), LaterStarts::new, |starts, point| starts.case(point));
}

/// Runs all cases of a start on a few threads, each with a state of its own, and prints a line for each.
fn run_matrix<S>(start: &Start, state: impl Fn() -> S + Sync, case: impl Fn(&mut S, &Point) -> Outcome + Sync) {
    let began = Instant::now();
    let places = start.places();
    let queue = Mutex::new(places.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut own = None;
                loop {
                    let Some(point) = queue.lock().unwrap().next() else { return };
                    let began = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| case(own.get_or_insert_with(&state), point)));
                    if outcome.is_err() {
                        // What a failed case leaves is no ground for the next.
                        own = None;
                    }
                    results.lock().unwrap().push((point, outcome.ok(), began.elapsed()));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let mut counts = BTreeMap::<&str, usize>::new();
    for (point, outcome, took) in &results {
        let (verdict, details) = match outcome {
            Some(Outcome::Died(etcd)) => ("died and came back", format!("etcd gone after {} ms", etcd.as_millis())),
            Some(Outcome::NotPassed) => ("not passed", String::new()),
            None => ("FAILED", String::new()),
        };
        *counts.entry(verdict).or_default() += 1;
        let name = format!("{}#{}", point.point, point.pass);
        println!("{name:<50} {:<40} {verdict}, {} ms, {details}", point.windows.join(" "), took.as_millis());
    }
    println!("{}: {} points, {counts:?}, {:.1} s", start.name, results.len(), began.elapsed().as_secs_f64());
    let failed: Vec<&String> =
        results.iter().filter(|(_, outcome, _)| outcome.is_none()).map(|(point, ..)| &point.point).collect();
    assert!(failed.is_empty(), "{} of {} points failed: {failed:?}", failed.len(), results.len());
    assert_eq!(results.len(), places.len());
}

/// Starts the node and lets it die at the point. Returns after how long its etcd was gone, or nothing if the node has come to rest
/// without passing the point.
fn die_at(place: &Place, start: &Start, point: &Point) -> Option<Duration> {
    let mut command = place.logged(place.host.command());
    command.env("POLIS_FAULT", format!("{}#{}", point.point, point.pass));
    let mut node = place.host.spawn(command);
    let status = node.wait_exit_or("rest", || !point.certain && start.is_at_rest(&place.passed()));
    // It may yet die there while it stops.
    let status = status.unwrap_or_else(|| {
        node.signal(rustix::process::Signal::TERM);
        node.wait_exit()
    });
    if !was_killed(status) {
        assert!(!point.certain && status.success(), "{}#{}: {status}\n{}", point.point, point.pass, node.log());
        return None;
    }
    let etcd = processes::wait_until_only_data_are_held(place.host.directory()).unwrap_or_else(|left| panic!("{left}"));
    assert!(etcd < ETCD_DEATH, "etcd outlived the node by {etcd:?}");
    processes::wait_until_gone(place.host.directory()).unwrap_or_else(|left| panic!("{left}"));
    assert_eq!(mounts::below(&place.root()), Vec::<PathBuf>::new(), "a mount is left");
    let passes = place.passed().iter().filter(|passed| **passed == point.point).count();
    assert_eq!(passes, point.pass);
    Some(etcd)
}

fn first_case(point: &Point) -> Outcome {
    let place = Place::new();
    let Some(etcd) = die_at(&place, &first_start(), point) else { return Outcome::NotPassed };
    let passed = place.passed();
    let has_passed = |point: &str| passed.iter().any(|passed| passed == point);

    let before = checks::on_disk(&place.root());
    if has_passed("journal/intent/renamed") {
        assert!(before.node_id.is_some(), "the intent was durable");
    } else if !has_passed("journal/intent/synced") {
        assert_eq!(before.node_id, None);
    }

    let mut node = place.host.start(&place.parameters);
    let status = node.wait_running();
    let content = checks::running(&place.root(), &status, &before);
    if has_passed("birth/after") {
        // The birth that was acknowledged is the one that is there. A store that was made anew would be in its first term
        // again: one for the making, one for the first election.
        assert!(content.raft_term > 2, "etcd has forgotten its history");
    }
    checks::leads(&place.root(), &node.wait_contact());
    assert!(node.stop().success());
    checks::stopped(&place.host);
    Outcome::Died(etcd)
}

/// A node that has run before, with what was written into it. It is killed in one start after the other.
struct LaterStarts {
    place: Place,
    written: BTreeMap<String, String>,
}

impl LaterStarts {
    fn new() -> Self {
        let place = Place::new();
        let mut starts = Self { place, written: BTreeMap::new() };
        starts.run();
        starts
    }

    /// Starts and checks the node, writes a key, and stops it.
    fn run(&mut self) {
        let before = checks::on_disk(&self.place.root());
        let mut node = self.place.host.start(&self.place.parameters);
        let status = node.wait_running();
        let content = checks::running(&self.place.root(), &status, &before);
        for (key, value) in &self.written {
            let found = content.entries.get(key).unwrap_or_else(|| panic!("{key} was acknowledged and is gone"));
            assert_eq!(found.value, value.as_bytes(), "{key}");
        }
        let (key, value) = (format!("test/{}", self.written.len()), format!("value {}", self.written.len()));
        Store::of_node(&self.place.root()).put(&key, &value);
        self.written.insert(key, value);
        checks::leads(&self.place.root(), &node.wait_contact());
        assert!(node.stop().success());
        checks::stopped(&self.place.host);
    }

    fn case(&mut self, point: &Point) -> Outcome {
        let files = contents(&self.place.root());
        let Some(etcd) = die_at(&self.place, &later_start(), point) else { return Outcome::NotPassed };
        // A later start makes nothing of value, so it cannot lose any either.
        assert_eq!(contents(&self.place.root()), files);
        self.run();
        Outcome::Died(etcd)
    }
}

/// The files in which a node keeps what it is, with their contents.
fn contents(root: &Path) -> BTreeMap<&'static str, Vec<u8>> {
    let plain = ["esp/polis/journal.0", "esp/polis/journal.1"];
    let encrypted: &[&str] = match StorageSecurity::of_this_run() {
        StorageSecurity::Insecure => &[],
        StorageSecurity::Authenticated => &["encrypted/partition", "encrypted/slot.0"],
    };
    let of_data = ["data/partition", "data/etcd/credentials", "data/node/credentials", "data/node/roles.0"];
    let data = NodeData::of(root);
    let below =
        |parent: PathBuf, name| (name, fs::read(parent.join(name)).unwrap_or_else(|error| panic!("{name}: {error}")));
    let direct = plain.iter().chain(encrypted).map(|name| below(root.to_owned(), *name));
    direct.chain(of_data.iter().map(|name| below(data.parent().to_owned(), *name))).collect()
}
