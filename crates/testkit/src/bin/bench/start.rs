//! How long a start takes: of a new node, and of one that was killed.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::{Arguments, Subject};
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_node::NodePlace;
use crate::raw_etcd::{EtcdPlace, Flags};
use crate::report::{Beside, Figure, Report, Target, Unit};

/// Pause before each measurement, in which what the one before has left to be written is written.
const PAUSE: Duration = Duration::from_millis(200);

/// Time between the first answer and the kill.
const LIFE: Duration = Duration::from_millis(300);

/// What one contestant needed for one thing, run by run.
#[derive(Default)]
pub(crate) struct Series {
    times: Vec<Duration>,
    /// The same times, where the contestant itself logs them.
    logged: Vec<Duration>,
    load: Load,
}

/// What one contestant needed.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) start: Series,
    pub(crate) restart: Series,
}

/// Measures both, the contestants in turn.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let (mut polis, mut default, mut quick) = (Times::default(), Times::default(), Times::default());
    for run in 1..=arguments.runs {
        node(place, &place.parameters, &mut polis).await?;
        etcd(place, Flags::Default, &mut default).await?;
        etcd(place, Flags::Quick, &mut quick).await?;
        arguments.progress(&format!(
            "run {run}: start and restart: polis {polis}; {} {default}; {} {quick}",
            Flags::Default.label(),
            Flags::Quick.label(),
        ));
    }
    if arguments.wants(Subject::Start) {
        // Beside etcd's first acknowledged write.
        let beside = [(Flags::Default, &default.start, Some(0.35)), (Flags::Quick, &quick.start, Some(2.5))];
        report.add(polis.start.figure("exec to Running, empty root", beside));
        report.add(polis.start.logged_figure("the same by the node's own log"));
    }
    if arguments.wants(Subject::Restart) {
        // Beside etcd's first linearizable read.
        let beside = [(Flags::Default, &default.restart, Some(0.25)), (Flags::Quick, &quick.restart, None)];
        report.add(polis.restart.figure("restart after kill -9 to Running", beside));
        report.add(polis.restart.logged_figure("the same by the node's own log"));
    }
    Ok(())
}

/// Starts a node with these parameters and starts it again, killed each time.
pub(crate) async fn node(place: &Place, parameters: &Path, times: &mut Times) -> Result<(), BenchError> {
    let mut node = NodePlace::new(place)?;
    node.parameters = parameters.to_owned();
    for series in [&mut times.start, &mut times.restart] {
        settle().await;
        let clock = Clock::now(&place.directory)?;
        let running = node.start().await?;
        series.load += clock.load()?;
        series.times.push(running.until_running);
        sleep(LIFE).await;
        series.logged.push(running.kill().await?);
    }
    Ok(())
}

async fn etcd(place: &Place, flags: Flags, times: &mut Times) -> Result<(), BenchError> {
    let etcd = EtcdPlace::new(place, flags)?;
    for (series, first) in [(&mut times.start, true), (&mut times.restart, false)] {
        settle().await;
        let clock = Clock::now(&place.directory)?;
        let running = if first { etcd.first_put().await? } else { etcd.first_read().await? };
        series.load += clock.load()?;
        series.times.push(running.until_answer);
        sleep(LIFE).await;
        running.kill().await?;
    }
    Ok(())
}

impl Series {
    /// This one, measured in turn with others, which it must not take longer than by a ratio.
    fn figure(&self, name: &str, others: [(Flags, &Self, Option<f64>); 2]) -> Figure {
        let mut load = self.load;
        others.iter().for_each(|(_, series, _)| load += series.load);
        let beside = others.map(|(flags, series, limit)| series.beside(flags.label(), limit));
        Figure {
            name: name.to_owned(),
            unit: Unit::Milliseconds,
            values: milliseconds(&self.times),
            target: None,
            beside: beside.into(),
            others: load.share(),
        }
    }

    /// This one as what another is compared with.
    fn beside(&self, label: &'static str, limit: Option<f64>) -> Beside {
        Beside { label, values: milliseconds(&self.times), target: limit.map(Target::AtMost) }
    }

    /// This one, measured in turn with that on plain data, which it must not take longer than by a ratio.
    pub(crate) fn figure_beside_plain(&self, name: &str, plain: &Self, limit: f64) -> Figure {
        let mut load = self.load;
        load += plain.load;
        Figure {
            name: name.to_owned(),
            unit: Unit::Milliseconds,
            values: milliseconds(&self.times),
            target: None,
            beside: vec![plain.beside("plain data", Some(limit))],
            others: load.share(),
        }
    }

    fn logged_figure(&self, name: &str) -> Figure {
        Figure {
            name: name.to_owned(),
            unit: Unit::Milliseconds,
            values: milliseconds(&self.logged),
            target: None,
            beside: Vec::new(),
            others: self.load.share(),
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = |series: &Series| last(&series.times);
        write!(formatter, "{:.1?} {:.1?}", last(&self.start), last(&self.restart))
    }
}

pub(crate) fn milliseconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1e3).collect()
}

/// The last of these, for who waits.
pub(crate) fn last(times: &[Duration]) -> Duration {
    times.last().copied().unwrap_or_default()
}

/// Lets the disk come to rest.
pub(crate) async fn settle() {
    rustix::fs::sync();
    sleep(PAUSE).await;
}
