//! How long a cluster of one consensus member takes to be one of three.

use std::time::Duration;

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::Contestant as _;
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::raw_cluster::{Check, RawCluster};
use crate::report::{Beside, Figure, Report, Target, Unit};
use crate::start::{last, milliseconds, settle};

/// Measures all in turn, each time with new clusters.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let (mut polis, mut default, mut off) = (Vec::new(), Vec::new(), Vec::new());
    let mut load = Load::default();
    for run in 1..=arguments.runs {
        polis.push(grow_polis(place, &mut load).await?);
        default.push(grow_raw(place, Check::Default, &mut load).await?);
        off.push(grow_raw(place, Check::Off, &mut load).await?);
        arguments.progress(&format!(
            "run {run}: grow: polis {:.1?}, {} {:.1?}, {} {:.1?}",
            last(&polis),
            Check::Default.label(),
            last(&default),
            Check::Off.label(),
            last(&off),
        ));
    }
    let beside = |check: Check, times: &[Duration], limit| Beside {
        label: check.label(),
        values: milliseconds(times),
        target: Some(Target::AtMost(limit)),
    };
    report.add(Figure {
        name: "1 to 3 members, first role change to a write through the third".into(),
        unit: Unit::Milliseconds,
        values: milliseconds(&polis),
        target: None,
        beside: vec![beside(Check::Default, &default, 0.1), beside(Check::Off, &off, 3.0)],
        others: load.share(),
    });
    Ok(())
}

async fn grow_polis(place: &Place, load: &mut Load) -> Result<Duration, BenchError> {
    let cluster = PolisCluster::with_one_member(place).await?;
    settle().await;
    let clock = Clock::now(&place.directory)?;
    let time = cluster.make_members().await?;
    *load += clock.load()?;
    // What is measured next is not to be disturbed by the end of these.
    cluster.kill().await?;
    Ok(time)
}

async fn grow_raw(place: &Place, check: Check, load: &mut Load) -> Result<Duration, BenchError> {
    let mut cluster = RawCluster::with_one_member(place, check).await?;
    settle().await;
    let clock = Clock::now(&place.directory)?;
    let time = cluster.make_members().await?;
    *load += clock.load()?;
    cluster.kill().await?;
    Ok(time)
}
