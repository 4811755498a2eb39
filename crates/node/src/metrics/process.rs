//! What the system says of this process.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

use crate::descriptors;

/// What the system says of this process. What it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessSample {
    /// Memory that it holds, in bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub(crate) open_files: Option<u64>,
    /// How many it may open.
    pub(crate) open_files_limit: Option<u64>,
    /// Processor time that it has used, in seconds.
    pub(crate) processor_seconds: Option<f64>,
    /// Threads.
    pub(crate) threads: Option<u64>,
}

impl ProcessSample {
    /// The values now. It reads files of the kernel, which do not block.
    pub(crate) fn take() -> Self {
        let pages = fs::read_to_string("/proc/self/statm").ok().and_then(|text| resident_pages(&text));
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let (ticks, threads) = stat.as_deref().and_then(ticks_and_threads).unzip();
        Self {
            resident_bytes: pages.map(|pages| pages * page_size() as u64),
            // The one through which they are counted is among them.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1)),
            open_files_limit: descriptors::limit(),
            processor_seconds: ticks.map(|ticks| ticks as f64 / clock_ticks_per_second() as f64),
            threads,
        }
    }
}

/// The second number of `/proc/PID/statm` (proc(5)).
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split(' ').nth(1)?.parse().ok()
}

/// From `/proc/PID/stat` (proc(5)): clock ticks in user and kernel mode together, and threads. The name of the program, in
/// parentheses, may have spaces and parentheses in it.
fn ticks_and_threads(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    // Counted from the state, which is field 3.
    let user: u64 = fields.nth(14 - 3)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let threads = fields.nth(20 - 16)?.parse().ok()?;
    Some((user + system, threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_stand_where_the_kernel_puts_them() {
        assert_eq!(resident_pages("5000 123 45 6 0 78 0\n"), Some(123));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 5 6 20 0 9 0 100 0 0";
        assert_eq!(ticks_and_threads(stat), Some((110, 9)));
        assert_eq!(ticks_and_threads("7 (a"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let sample = ProcessSample::take();
        assert!(sample.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{sample:?}");
        assert!(sample.open_files.is_some_and(|files| (3..10_000).contains(&files)), "{sample:?}");
        assert!(sample.threads.is_some_and(|threads| threads >= 1), "{sample:?}");
        assert!(sample.processor_seconds.is_some(), "{sample:?}");
    }
}
