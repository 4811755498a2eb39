//! What a node takes while nothing happens: memory, and how often it wakes.

use std::fs;
use std::time::Duration;

use tokio::time::sleep;

use crate::BenchError;
use crate::arguments::{Arguments, Subject};
use crate::machine::Clock;
use crate::place::Place;
use crate::polis_node::NodePlace;
use crate::raw_etcd::{EtcdPlace, Flags};
use crate::report::{Beside, Figure, Report, Target, Unit};

/// Age of a node at which its memory is measured.
const AGE: Duration = Duration::from_secs(30);

/// How long wakes are counted. Nobody is connected to the node meanwhile.
const WINDOW: Duration = Duration::from_secs(10);

/// Measures all nodes side by side: what an idle process takes does not depend on its neighbours, and ten times 40 s in turn
/// would be spent on nothing.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let places = (0..arguments.runs).map(|_| NodePlace::new(place)).collect::<Result<Vec<_>, _>>()?;
    let etcd = EtcdPlace::new(place, Flags::Default)?;
    let mut nodes = Vec::new();
    for place in &places {
        nodes.push(place.start().await?);
    }
    let raw = etcd.first_put().await?;
    sleep(AGE).await;
    let memory = |field: &str| nodes.iter().map(|node| memory(node.id(), field)).collect::<Result<Vec<_>, _>>();
    let (resident, peak) = (memory("VmRSS:")?, memory("VmHWM:")?);
    let (raw_resident, raw_peak) = (self::memory(raw.id(), "VmRSS:")?, self::memory(raw.id(), "VmHWM:")?);

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

/// A line of /proc/PID/status that is in kB, in MiB.
fn memory(process: u32, field: &str) -> Result<f64, BenchError> {
    let kibibytes = status_field(&format!("/proc/{process}/status"), field)?;
    Ok(kibibytes as f64 / 1024.0)
}

/// How often all threads of a process have waited so far.
fn voluntary_switches(process: u32) -> Result<u64, BenchError> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = thread?.path().join("status").display().to_string();
        // A thread that has ended meanwhile does not count.
        sum += status_field(&path, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

fn status_field(path: &str, field: &str) -> Result<u64, BenchError> {
    let status = fs::read_to_string(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value =
        line.and_then(|line| line.split_ascii_whitespace().next()).ok_or_else(|| format!("{path}: no {field}"))?;
    Ok(value.parse()?)
}
