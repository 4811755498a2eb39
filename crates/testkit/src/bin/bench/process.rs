//! What a process takes, as the kernel counts it.

use std::fs;
use std::time::Duration;

use crate::BenchError;

/// Clock ticks a second, in which the kernel tells processor time to programs (proc(5), `sysconf(_SC_CLK_TCK)`): the same on all
/// architectures that there are binaries for.
pub(crate) const TICKS_A_SECOND: u64 = 100;

/// A line of /proc/PID/status that is in kB, in MiB: `VmRSS:` or `VmHWM:`.
pub(crate) fn memory(process: u32, field: &str) -> Result<f64, BenchError> {
    let kibibytes = status_field(&format!("/proc/{process}/status"), field)?;
    Ok(kibibytes as f64 / 1024.0)
}

/// How often all threads of a process have waited so far.
pub(crate) fn voluntary_switches(process: u32) -> Result<u64, BenchError> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = thread?.path().join("status").display().to_string();
        // A thread that has ended meanwhile does not count.
        sum += status_field(&path, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

/// Processor time that a process has taken so far, without its children. Rounded down to 10 ms.
pub(crate) fn processor_time(process: u32) -> Result<Duration, BenchError> {
    let [user, system, _, _] = ticks(&process.to_string())?;
    Ok(Duration::from_millis((user + system) * 1_000 / TICKS_A_SECOND))
}

/// Ticks of a process, and of its children that it has waited for: user, system, user and system of these (proc(5): fields 14 to
/// 17 of `stat`).
pub(crate) fn ticks(process: &str) -> Result<[u64; 4], BenchError> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program, in parentheses, may hold anything; the fields after it are numbered from 3.
    let fields = stat.rsplit_once(')').ok_or("a process has no name")?.1.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.skip(14 - 3).take(4).map(str::parse).collect::<Result<_, _>>()?;
    ticks.try_into().map_err(|_| "a process has too few fields".into())
}

fn status_field(path: &str, field: &str) -> Result<u64, BenchError> {
    let status = fs::read_to_string(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value =
        line.and_then(|line| line.split_ascii_whitespace().next()).ok_or_else(|| format!("{path}: no {field}"))?;
    Ok(value.parse()?)
}
