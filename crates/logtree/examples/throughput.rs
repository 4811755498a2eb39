//! Measures how many entries of 200 bytes a tree takes per second of processor time from several threads that write
//! under one name, and how much memory the process needs meanwhile, with and without a reader that is too slow.
//!
//! `cargo run --release -p polis-logtree --example throughput [ENTRIES_PER_WRITER]` prints one line per case; the
//! processor time is that of the whole process, user and system, with the reader's.

use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polis_logtree::{
    Backlog, DistinguishedName, ENTRIES_PER_NAME, Item, LogTree, NameError, ReadOptions, runnable_span,
};
use rustix::time::{ClockId, clock_gettime};
use tracing_subscriber::layer::SubscriberExt as _;

/// Threads that write at the same time.
const WRITERS: usize = 4;

/// Bytes of text in each entry.
const ENTRY_BYTES: usize = 200;

/// Entries each writer writes when the command line does not say: enough for two seconds at the target speed.
const ENTRIES_PER_WRITER: usize = 500_000;

/// How the entries are written.
#[derive(Clone, Copy)]
enum Way {
    Logger,
    RawWriter,
    RawWriterPipe,
    Tracing,
}

impl Way {
    const ALL: [Self; 4] = [Self::Logger, Self::RawWriter, Self::RawWriterPipe, Self::Tracing];

    fn label(self) -> &'static str {
        match self {
            Self::Logger => "logger",
            Self::RawWriter => "raw-line",
            Self::RawWriterPipe => "raw-pipe",
            Self::Tracing => "tracing",
        }
    }

    fn write(self, tree: &LogTree, name: &DistinguishedName, entries: usize) {
        let text = "x".repeat(ENTRY_BYTES);
        let line = format!("{text}\n");
        match self {
            Self::Logger => {
                let logger = tree.logger(name);
                (0..entries).for_each(|_| logger.info(&text));
            }
            Self::RawWriter => {
                let mut writer = tree.raw(name);
                (0..entries).for_each(|_| writer.write(line.as_bytes()));
            }
            Self::RawWriterPipe => {
                // A child process that writes a lot fills its pipe: reads of 8 KiB.
                let mut writer = tree.raw(name);
                let output = line.repeat(entries.min(1 << 14));
                let mut left = line.len() * entries;
                while left > 0 {
                    let round = left.min(output.len());
                    output.as_bytes()[..round].chunks(8 << 10).for_each(|piece| writer.write(piece));
                    left -= round;
                }
            }
            Self::Tracing => {
                let subscriber = tracing_subscriber::registry().with(tree.layer());
                tracing::subscriber::with_default(subscriber, || {
                    runnable_span(name).in_scope(|| (0..entries).for_each(|number| tracing::info!(number, "{text}")));
                });
            }
        }
    }
}

/// The readers that follow the tree meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Following {
    Nobody,
    /// Takes an entry, then sleeps for a millisecond.
    Slow,
    /// Takes entries as fast as it can.
    Fast,
}

/// The argument by which the program calls itself for one case.
const CASE: &str = "--case";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure_all(ENTRIES_PER_WRITER),
        [entries] => measure_all(entries.parse()?),
        [CASE, case, entries] => measure_case(case.parse()?, entries.parse()?),
        _ => Err("usage: throughput [ENTRIES_PER_WRITER]".into()),
    }
}

/// All ways of writing with all ways of reading.
fn cases() -> Vec<(Way, Following)> {
    let followings = [Following::Nobody, Following::Slow, Following::Fast];
    Way::ALL.iter().flat_map(|way| followings.map(|following| (*way, following))).collect()
}

/// Each case in a process of its own, so that the peak of one is not that of another.
fn measure_all(entries: usize) -> Result<(), Box<dyn std::error::Error>> {
    // One past the last case is the backlog.
    for case in 0..=cases().len() {
        let arguments = [CASE.into(), case.to_string(), entries.to_string()];
        if !Command::new(std::env::current_exe()?).args(arguments).status()?.success() {
            return Err(format!("case {case} failed").into());
        }
    }
    Ok(())
}

fn measure_case(case: usize, entries: usize) -> Result<(), Box<dyn std::error::Error>> {
    match cases().get(case) {
        Some((way, following)) => measure(*way, *following, entries),
        None => measure_backlog(),
    }
}

fn measure(way: Way, following: Following, entries: usize) -> Result<(), Box<dyn std::error::Error>> {
    let tree = LogTree::default();
    let name = DistinguishedName::parse("root.benchmark")?;
    let mut reader = match following {
        Following::Nobody => None,
        Following::Slow | Following::Fast => {
            Some(tree.read(&name, ReadOptions { backlog: Backlog::None, stream: true, ..ReadOptions::default() })?)
        }
    };
    let written = AtomicBool::new(false);
    let (wall, processor) = (Instant::now(), processor_time());
    let read = thread::scope(|scope| {
        let reading = reader.as_mut().map(|reader| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
                runtime.block_on(async {
                    let mut read = 0_u64;
                    while !written.load(Ordering::Relaxed) {
                        let next = tokio::time::timeout(Duration::from_millis(1), reader.next());
                        match next.await {
                            Ok(Some(Item::Entry(_))) => read += 1,
                            Ok(Some(Item::Missed(_))) | Err(_) => {}
                            Ok(None) => break,
                        }
                        if following == Following::Slow {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    Ok::<_, std::io::Error>(read)
                })
            })
        });
        let writing: Vec<_> = (0..WRITERS).map(|_| scope.spawn(|| way.write(&tree, &name, entries))).collect();
        let finished = writing.into_iter().all(|writer| writer.join().is_ok());
        written.store(true, Ordering::Relaxed);
        let read = reading.map_or(Ok(0), |reading| reading.join().unwrap_or(Ok(0)));
        read.and_then(|read| finished.then_some(read).ok_or_else(|| std::io::Error::other("a writer panicked")))
    })?;
    let (wall, processor) = (wall.elapsed(), processor_time() - processor);
    let total = (WRITERS * entries) as f64;
    writeln!(
        std::io::stdout(),
        "logtree-throughput via={} writers={WRITERS} slow_reader={} fast_reader={} entries={total} \
         entries_per_cpu_second={:.0} entries_per_second={:.0} read={read} rss_mib={:.1}",
        way.label(),
        following == Following::Slow,
        following == Following::Fast,
        total / processor.as_secs_f64(),
        total / wall.as_secs_f64(),
        peak_memory_mib()?,
    )?;
    Ok(())
}

/// Reads everything a full tree holds: how long it takes, and how long a writer had to wait meanwhile at most.
fn measure_backlog() -> Result<(), Box<dyn std::error::Error>> {
    let tree = LogTree::default();
    let loggers = (0..16).map(|number| Ok(tree.logger(&DistinguishedName::parse(&format!("root.n{number}"))?)));
    let loggers = loggers.collect::<Result<Vec<_>, NameError>>()?;
    let text = "x".repeat(ENTRY_BYTES);
    (0..ENTRIES_PER_NAME).for_each(|_| loggers.iter().for_each(|logger| logger.info(&text)));
    let reading = AtomicBool::new(true);
    let (entries, elapsed, longest_wait) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while reading.load(Ordering::Relaxed) {
                let begin = Instant::now();
                loggers[0].info("");
                longest = longest.max(begin.elapsed());
            }
            longest
        });
        let begin = Instant::now();
        let options = ReadOptions { with_children: true, ..ReadOptions::default() };
        let entries = tree.read(&DistinguishedName::root(), options).map(|reader| reader.backlog.len());
        let elapsed = begin.elapsed();
        reading.store(false, Ordering::Relaxed);
        (entries, elapsed, writer.join().unwrap_or_default())
    });
    writeln!(
        std::io::stdout(),
        "logtree-backlog names=16 entries={} milliseconds={:.2} longest_write_milliseconds={:.2}",
        entries?,
        elapsed.as_secs_f64() * 1e3,
        longest_wait.as_secs_f64() * 1e3,
    )?;
    Ok(())
}

/// Processor time of all threads so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap_or(0))
}

/// Peak resident memory of this process.
fn peak_memory_mib() -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/self/status")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}
