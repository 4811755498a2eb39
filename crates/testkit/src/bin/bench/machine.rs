//! How busy everything else on the machine is during a measurement.

use std::fs;
use std::path::Path;

use polis_testkit::processes;

use crate::{BenchError, process};

/// Fields of the first line of /proc/stat that are time in which a processor did nothing (proc(5)): idle and iowait.
const IDLE_FIELDS: [usize; 2] = [3, 4];

/// Fields of that line that count, up to `steal`: what follows is contained in the first ones.
const FIELDS: usize = 8;

/// A moment, in clock ticks since the machine was started.
pub(crate) struct Clock<'a> {
    directory: &'a Path,
    busy: u64,
    total: u64,
    own: u64,
}

/// Processor time of a stretch of measuring, in clock ticks of all processors. Stretches can be added.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    others: u64,
    total: u64,
}

impl<'a> Clock<'a> {
    /// Now. This process and those that work in `directory` are what is measured.
    pub(crate) fn now(directory: &'a Path) -> Result<Self, BenchError> {
        let (busy, total) = ticks()?;
        let measured = processes::in_directory(directory);
        // One that has just ended is not measured any more.
        let measured: u64 = measured.iter().filter_map(|process| process_ticks(&process.id.to_string()).ok()).sum();
        Ok(Self { directory, busy, total, own: process_ticks("self")? + measured })
    }

    /// What everything else has done since. Nothing that is measured may have ended since.
    pub(crate) fn load(&self) -> Result<Load, BenchError> {
        let now = Self::now(self.directory)?;
        let own = now.own.saturating_sub(self.own);
        Ok(Load { others: (now.busy - self.busy).saturating_sub(own), total: now.total - self.total })
    }
}

impl Load {
    /// Share of all processors, 0 to 1.
    pub(crate) fn share(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.others as f64 / self.total as f64 }
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.others += other.others;
        self.total += other.total;
    }
}

/// Busy and all ticks of all processors.
fn ticks() -> Result<(u64, u64), BenchError> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).ok_or("/proc/stat has no line cpu")?;
    let fields: Vec<u64> = line.split_ascii_whitespace().take(FIELDS).map(str::parse).collect::<Result<_, _>>()?;
    let total = fields.iter().sum();
    Ok((total - IDLE_FIELDS.iter().filter_map(|field| fields.get(*field)).sum::<u64>(), total))
}

/// Ticks of a process and of its children that it has waited for.
fn process_ticks(process: &str) -> Result<u64, BenchError> {
    Ok(process::ticks(process)?.iter().sum())
}
