//! What a node takes while nothing happens: memory, and how often it wakes.

use std::time::Duration;

use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::{Arguments, Subject};
use crate::machine::Clock;
use crate::place::Place;
use crate::polis_node::NodePlace;
use crate::process::{self, voluntary_switches};
use crate::raw_etcd::{EtcdPlace, Flags};
use crate::report::{Beside, Figure, Report, Target, Unit};

/// Age of a node at which its memory is measured.
const AGE: Duration = Duration::from_secs(30);

/// How long wakes are counted. Nobody is connected to the node meanwhile.
const WINDOW: Duration = Duration::from_secs(10);

/// Most nodes that are measured: with more of them the machine would not be idle.
const NODES: u32 = 10;

/// Measures all nodes side by side: what an idle process takes does not depend on its neighbours, and ten times 40 s in turn
/// would be spent on nothing.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let places = (0..arguments.runs.min(NODES)).map(|_| NodePlace::new(place)).collect::<Result<Vec<_>, _>>()?;
    let etcd = EtcdPlace::new(place, Flags::Default)?;
    let mut nodes = Vec::new();
    for place in &places {
        nodes.push(place.start().await?);
    }
    let raw = etcd.first_put().await?;
    sleep(AGE).await;
    let memory =
        |field: &str| nodes.iter().map(|node| process::memory(node.id(), field)).collect::<Result<Vec<_>, _>>();
    let (resident, peak) = (memory("VmRSS:")?, memory("VmHWM:")?);
    let (raw_resident, raw_peak) = (process::memory(raw.id(), "VmRSS:")?, process::memory(raw.id(), "VmHWM:")?);

    let wakes = || nodes.iter().map(|node| voluntary_switches(node.id())).collect::<Result<Vec<_>, _>>();
    let (clock, before, raw_before) = (Clock::now(&place.directory)?, wakes()?, voluntary_switches(raw.id())?);
    sleep(WINDOW).await;
    let (after, raw_after) = (wakes()?, voluntary_switches(raw.id())?);
    let switches: Vec<f64> = after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let load = clock.load()?;
    for node in nodes {
        node.kill().await?;
    }
    raw.kill().await?;

    arguments.progress(&format!("idle: VmRSS {resident:.1?} MiB, peak {peak:.1?} MiB, switches {switches:?}"));
    let figure = |name: &str, unit, values, target, raw: f64| Figure {
        name: name.into(),
        unit,
        values,
        target,
        beside: vec![Beside { label: Flags::Default.label(), values: vec![raw], target: None }],
        others: load.share(),
    };
    if arguments.wants(Subject::Memory) {
        let target = Some(Target::AtMost(25.0));
        report.add(figure("VmRSS of polis, 30 s after Running", Unit::Mebibytes, resident, target, raw_resident));
        report.add(figure("highest VmRSS until then (VmHWM)", Unit::Mebibytes, peak, None, raw_peak));
    }
    if arguments.wants(Subject::Wakeups) {
        let raw = (raw_after - raw_before) as f64;
        let target = Some(Target::Below(20.0));
        report.add(figure("voluntary context switches in 10 s idle", Unit::Count, switches, target, raw));
    }
    Ok(())
}
