//! How soon a member whose data are encrypted has them open again when it alone was rebooted: the others give it its key.

use std::time::Duration;

use jiff::Timestamp;
use polis_rpc::UNLOCK_PORT;
use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::{ALL, Contestant as _};
use crate::life::LIFE;
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::polis_node::last_logged;
use crate::report::{Figure, Report, Target, Unit};
use crate::start::{last, milliseconds, settle};

/// Longest time from the network to the open data, in milliseconds.
const LIMIT: f64 = 200.0;

/// What a node logs when its data are open by the key that others have given: it has tried the key at the data by then.
const OPEN: [&str; 2] = ["the running cluster has given the key of the data", "the other members have opened the data"];

/// Reboots a follower, again and again.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let mut cluster = PolisCluster::encrypted(place, &place.encrypted_parameters()?).await?;
    let (mut from_network, mut from_exec): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    let mut load = Load::default();
    for run in 1..=arguments.runs {
        let leader = cluster.whole().await?;
        let rebooted = ALL.rev().find(|number| *number != leader).ok_or("there is no follower")?;
        sleep(LIFE).await;
        cluster.take_down(rebooted).await?;
        settle().await;
        let clock = Clock::now(&place.directory)?;
        cluster.launch(rebooted..rebooted + 1).await?;
        cluster.running(rebooted).await?;
        load += clock.load()?;
        // It is its log that knows when, and that can be read when it has ended.
        let (began, log) = cluster.take_down(rebooted).await?;
        // What it logs when its address is there and it can be called.
        let network = format!("serving on {}:{UNLOCK_PORT}", cluster.ip(rebooted));
        let (network, open) = (last_logged(&log, &[&network])?, last_logged(&log, &OPEN)?);
        from_network.push(between(network, open)?);
        from_exec.push(between(began, open)?);
        cluster.launch(rebooted..rebooted + 1).await?;
        let (network, exec) = (last(&from_network), last(&from_exec));
        arguments
            .progress(&format!("run {run}: open data of a rebooted member: {network:.1?}, since its exec {exec:.1?}"));
    }
    let mut add = |name: &str, times: &[Duration], target| {
        report.add(Figure {
            name: name.into(),
            unit: Unit::Milliseconds,
            values: milliseconds(times),
            target,
            beside: Vec::new(),
            others: load.share(),
        });
    };
    add("one member reboots: from its network to its open data", &from_network, Some(Target::AtMost(LIMIT)));
    add("the same from its exec", &from_exec, None);
    cluster.kill().await
}

fn between(begin: Timestamp, end: Timestamp) -> Result<Duration, BenchError> {
    Ok(end.duration_since(begin).try_into()?)
}
