//! What happens to a cluster of three in its life: its leader dies, all of it dies and is started, it is stopped.
//!
//! One cluster of nodes and one of raw etcds live through all of it, again and again and in turn.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::{Arguments, Subject};
use crate::contestant::{ALL, Contestant};
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::raw_cluster::{Check, RawCluster};
use crate::report::{Beside, Figure, Report, Target, Unit};
use crate::start::{last, milliseconds, settle};

/// Time between the moment when a cluster is whole and what is done to it next.
pub(crate) const LIFE: Duration = Duration::from_millis(500);

/// What is done to a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The leader is killed with -9. Measured is the time until the next write.
    LeaderKilled,
    /// All are killed with -9 and then started. Measured is the time from the start of the first until a write.
    AllKilled,
    /// All are asked to stop. Measured is the time until all are gone.
    AllStopped,
}

/// What both needed for one thing.
#[derive(Default)]
struct Times {
    polis: Vec<Duration>,
    raw: Vec<Duration>,
    load: Load,
}

impl Times {
    /// Measures one after the other, and leaves both as they were.
    async fn measure(
        &mut self,
        place: &Place,
        polis: &mut PolisCluster<'_>,
        raw: &mut RawCluster<'_>,
        event: Event,
    ) -> Result<(), BenchError> {
        self.polis.push(live_through(place, polis, event, &mut self.load).await?);
        self.raw.push(live_through(place, raw, event, &mut self.load).await?);
        Ok(())
    }

    fn figure(&self, name: &str, own: Option<Target>, ratio: Option<Target>) -> Figure {
        let beside = Beside { label: Check::Default.label(), values: milliseconds(&self.raw), target: ratio };
        Figure {
            name: name.to_owned(),
            unit: Unit::Milliseconds,
            values: milliseconds(&self.polis),
            target: own,
            beside: vec![beside],
            others: self.load.share(),
        }
    }

    fn last(&self) -> String {
        format!("polis {:.1?}, raw {:.1?}", last(&self.polis), last(&self.raw))
    }
}

/// Measures whichever of the three is wanted.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let mut polis = PolisCluster::with_three_members(place).await?;
    let mut raw = RawCluster::with_three_members(place).await?;
    let (mut fail_over, mut cold_start, mut stop) = (Times::default(), Times::default(), Times::default());
    for run in 1..=arguments.runs {
        if arguments.wants(Subject::FailOver) {
            fail_over.measure(place, &mut polis, &mut raw, Event::LeaderKilled).await?;
            arguments.progress(&format!("run {run}: fail-over: {}", fail_over.last()));
        }
        if arguments.wants(Subject::ColdStart) {
            cold_start.measure(place, &mut polis, &mut raw, Event::AllKilled).await?;
            arguments.progress(&format!("run {run}: cold start: {}", cold_start.last()));
        }
        if arguments.wants(Subject::Stop) {
            stop.measure(place, &mut polis, &mut raw, Event::AllStopped).await?;
            arguments.progress(&format!("run {run}: stop: {}", stop.last()));
        }
    }
    if arguments.wants(Subject::ColdStart) {
        let name = "three nodes killed with -9, all started: to a Management write";
        report.add(cold_start.figure(name, None, Some(Target::AtMost(2.0))));
    }
    if arguments.wants(Subject::FailOver) {
        let name = "leader killed with -9: to the next Management write";
        report.add(fail_over.figure(name, None, Some(Target::AtMost(1.3))));
    }
    if arguments.wants(Subject::Stop) {
        report.add(stop.figure("orderly stop of all three", Some(Target::AtMost(1_000.0)), None));
    }
    polis.kill().await?;
    raw.kill().await
}

/// What one cluster needs.
pub(crate) async fn live_through(
    place: &Place,
    cluster: &mut impl Contestant,
    event: Event,
    load: &mut Load,
) -> Result<Duration, BenchError> {
    let leader = cluster.whole().await?;
    sleep(LIFE).await;
    settle().await;
    let time = match event {
        Event::LeaderKilled => {
            let begin = Instant::now();
            let dead = leader..leader + 1;
            cluster.send_kill(dead.clone());
            // What the dead have done before is not to be missed at the end. To look takes some milliseconds, which nobody answers.
            let clock = Clock::now(&place.directory)?;
            let time = cluster.write().await? - begin;
            *load += clock.load()?;
            cluster.ended(dead.clone()).await?;
            cluster.launch(dead).await?;
            time
        }
        Event::AllKilled => {
            cluster.send_kill(ALL);
            cluster.ended(ALL).await?;
            settle().await;
            let clock = Clock::now(&place.directory)?;
            let begin = Instant::now();
            cluster.launch(ALL).await?;
            let time = cluster.write().await? - begin;
            *load += clock.load()?;
            time
        }
        Event::AllStopped => {
            let clock = Clock::now(&place.directory)?;
            let begin = Instant::now();
            cluster.send_terminate()?;
            let time = cluster.ended(ALL).await? - begin;
            // Those that have ended were waited for, and count as this process.
            *load += clock.load()?;
            cluster.launch(ALL).await?;
            time
        }
    };
    Ok(time)
}
