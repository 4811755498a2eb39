//! What a follower takes while nothing happens, and how calm a cluster stays while all processors are busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::{ALL, Contestant as _};
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::process::{memory, voluntary_switches};
use crate::raw_cluster::{Check, RawCluster};
use crate::report::{Beside, Figure, Report, Target, Unit};

/// Age of a cluster at which its followers are measured.
const AGE: Duration = Duration::from_secs(30);

/// How long wakes are counted. Nobody but the others is connected to the nodes meanwhile.
const WINDOW: Duration = Duration::from_secs(10);

/// How often they are counted, in both followers.
const WINDOWS: u32 = 5;

/// How long the processors are kept busy.
const BUSY: Duration = Duration::from_secs(60);

/// Measures both clusters side by side: what an idle process takes does not depend on its neighbours.
pub(crate) async fn idle(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let polis = PolisCluster::with_three_members(place).await?;
    let raw = RawCluster::with_three_members(place).await?;
    sleep(AGE).await;
    let (polis_leader, raw_leader) = (polis.whole().await?, raw.whole().await?);
    let followers = |leader| ALL.filter(move |number| *number != leader);
    let nodes = followers(polis_leader).map(|number| polis.process(number)).collect::<Result<Vec<_>, _>>()?;
    let etcds = followers(raw_leader).map(|number| raw.process(number)).collect::<Result<Vec<_>, _>>()?;
    let (mut own, mut beside) = (Measured::default(), Measured::default());
    let mut load = Load::default();
    for _ in 0..arguments.runs.min(WINDOWS) {
        let clock = Clock::now(&place.directory)?;
        let before = (switches(&nodes)?, switches(&etcds)?);
        sleep(WINDOW).await;
        own.add(&nodes, &before.0)?;
        beside.add(&etcds, &before.1)?;
        load += clock.load()?;
        arguments.progress(&format!("follower: {own:.1?}; raw {beside:.1?}"));
    }
    let mut add = |name: &str, unit, values, limit, raw| {
        report.add(Figure {
            name: name.into(),
            unit,
            values,
            target: Some(Target::AtMost(limit)),
            beside: vec![Beside { label: Check::Default.label(), values: raw, target: None }],
            others: load.share(),
        });
    };
    add("a follower's polis process: VmRSS", Unit::Mebibytes, own.resident, 30.0, beside.resident);
    let name = "a follower's polis process: voluntary context switches in 10 s";
    add(name, Unit::Count, own.switches, 60.0, beside.switches);
    polis.kill().await?;
    raw.kill().await
}

#[derive(Debug, Default)]
struct Measured {
    resident: Vec<f64>,
    switches: Vec<f64>,
}

impl Measured {
    fn add(&mut self, processes: &[u32], before: &[u64]) -> Result<(), BenchError> {
        for (after, before) in switches(processes)?.into_iter().zip(before) {
            self.switches.push(after.saturating_sub(*before) as f64);
        }
        for process in processes {
            self.resident.push(memory(*process, "VmRSS:")?);
        }
        Ok(())
    }
}

fn switches(processes: &[u32]) -> Result<Vec<u64>, BenchError> {
    processes.iter().map(|process| voluntary_switches(*process)).collect()
}

/// Counts the terms of raft that pass while a loop is busy on each processor: each is an election that nobody needed.
pub(crate) async fn elections(_: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let mut load = Load::default();
    let polis = PolisCluster::with_three_members(place).await?;
    let before = polis.status().await?.raft_term;
    keep_busy(place, &mut load).await?;
    let own = polis.status().await?.raft_term - before;
    polis.kill().await?;
    let raw = RawCluster::with_three_members(place).await?;
    let before = raw.term().await?;
    keep_busy(place, &mut load).await?;
    let beside = raw.term().await? - before;
    raw.kill().await?;
    report.add(Figure {
        name: "needless elections in 60 s with one busy loop on each core".into(),
        unit: Unit::Count,
        values: vec![own as f64],
        target: Some(Target::AtMost(0.0)),
        beside: vec![Beside { label: Check::Default.label(), values: vec![beside as f64], target: None }],
        others: load.share(),
    });
    Ok(())
}

async fn keep_busy(place: &Place, load: &mut Load) -> Result<(), BenchError> {
    let clock = Clock::now(&place.directory)?;
    let loops = BusyLoops::start();
    sleep(BUSY).await;
    drop(loops);
    *load += clock.load()?;
    Ok(())
}

/// Threads that do nothing, and that all the time.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let stop = stop.clone();
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {});
        }
        Self(stop)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
