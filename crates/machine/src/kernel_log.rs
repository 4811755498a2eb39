//! The log of the kernel, copied into that of the node.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use polis_logtree::DistinguishedName;
use polis_logtree::parse::{KERNEL_RECORD_BYTES, kernel};
use polis_supervisor::{Context, RunnableResult};
use polis_sys::watch_readable;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::machine::Machine;

/// The name under which messages of the kernel stand in the log.
pub(crate) const KERNEL_NAME: &str = "kernel";

/// How often is said that messages were lost. A kernel in trouble writes faster than anybody reads.
const OVERRUN_INTERVAL: Duration = Duration::from_secs(1);

/// Copies the messages of the kernel for as long as the machine runs, from its first: a runnable. A second life goes on where the
/// first has ended.
pub(crate) async fn copy(context: Context, machine: Machine) -> RunnableResult {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")?;
    let file = watch_readable(file)?;
    let logger = context.log_tree().logger(&DistinguishedName::parse(KERNEL_NAME)?);
    let sequence = machine.kernel_sequence();
    let mut buffer = [0; KERNEL_RECORD_BYTES];
    let mut overrun_said: Option<Instant> = None;
    context.healthy();
    loop {
        let mut ready = context.unless_cancelled(file.readable()).await??;
        match ready.try_io(|file| file.get_ref().read(&mut buffer)) {
            // Nothing more now.
            Err(_) => {}
            Ok(Ok(count)) => {
                let record = &buffer[..count];
                if let Some(number) = sequence_of(record) {
                    if number < sequence.load(Ordering::Relaxed) {
                        continue;
                    }
                    sequence.store(number + 1, Ordering::Relaxed);
                }
                let now = Timestamp::now();
                let (timestamp, payload) = kernel(record, started(now), now);
                logger.write(timestamp, payload);
            }
            Ok(Err(error)) if is_overrun(&error) => {
                if overrun_said.is_none_or(|said| said.elapsed() >= OVERRUN_INTERVAL) {
                    overrun_said = Some(Instant::now());
                    tracing::warn!("messages of the kernel were lost: it has written faster than they were read");
                }
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error.into()),
        }
    }
}

/// When the kernel's own clock was zero, by the clock on the wall. Asked anew for each record, as the latter may be set.
fn started(now: Timestamp) -> Timestamp {
    let time = clock_gettime(ClockId::Monotonic);
    let since = SignedDuration::new(time.tv_sec, i32::try_from(time.tv_nsec).unwrap_or(0));
    now.checked_sub(since).unwrap_or(now)
}

/// What the kernel answers when messages that were not read yet have been overwritten. The next read goes on with the oldest.
fn is_overrun(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::PIPE)
}

/// The number of a record: its second field.
fn sequence_of(record: &[u8]) -> Option<u64> {
    let header = record.split(|byte| *byte == b';').next()?;
    str::from_utf8(header.split(|byte| *byte == b',').nth(1)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_record_is_its_second_field() {
        for (record, number) in [
            (&b"6,339,5140900,-;NET: Registered\n KEY=1\n"[..], Some(339)),
            (b"6,;text,7", None),
            (b"no record", None),
            (b"", None),
        ] {
            assert_eq!(sequence_of(record), number, "{}", String::from_utf8_lossy(record));
        }
    }
}
