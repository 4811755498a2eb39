//! How long three nodes on encrypted data take that have all lost power: none of them opens its data by itself. Beside the same three
//! on plain data, in turn.

use std::time::Duration;

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::Contestant as _;
use crate::life::{Event, live_through};
use crate::machine::Load;
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::report::{Beside, Figure, Report, Target, Unit};
use crate::start::{last, milliseconds};

/// At most so many times what it takes on plain data.
const LIMIT: f64 = 1.3;

/// Kills and starts both clusters, again and again.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let mut encrypted = PolisCluster::encrypted(place, &place.encrypted_parameters()?).await?;
    let mut plain = PolisCluster::with_three_members(place).await?;
    let (mut times, mut plain_times): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    let mut load = Load::default();
    for run in 1..=arguments.runs {
        times.push(live_through(place, &mut encrypted, Event::AllKilled, &mut load).await?);
        plain_times.push(live_through(place, &mut plain, Event::AllKilled, &mut load).await?);
        let (encrypted, plain) = (last(&times), last(&plain_times));
        arguments.progress(&format!("run {run}: cold start: encrypted {encrypted:.1?}, plain {plain:.1?}"));
    }
    report.add(Figure {
        name: "encrypted: three nodes killed with -9, all started: to a Management write".into(),
        unit: Unit::Milliseconds,
        values: milliseconds(&times),
        target: None,
        beside: vec![Beside {
            label: "plain data",
            values: milliseconds(&plain_times),
            target: Some(Target::AtMost(LIMIT)),
        }],
        others: load.share(),
    });
    encrypted.kill().await?;
    plain.kill().await
}
