//! How often in a row the machine has failed soon after it was started: each time it is held longer before it starts again, so that a
//! failure that stays wears out nothing, neither the disk nor those whom the node asks.
//!
//! It is counted in a file on the EFI system partition, which is there whatever has become of the data. The file may be lost, to a
//! power cut or with the partition: then the count begins anew, and nothing else is wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use polis_storage::{DiskError, HostDisk, Layout};

use crate::esp::{EspState, ROOT};

/// How long a machine whose node has failed is held before it starts again: long enough to read why, or to take a picture of it. Each
/// further failure in a row doubles it.
pub const HOLD: Duration = Duration::from_secs(30);

/// How long it is held at most: a cause that passes is noticed within minutes, and a person who comes does not wait for long.
pub const LONGEST_HOLD: Duration = Duration::from_secs(300);

/// A machine that was up for so long has not failed at its start: its failure is the first of its row.
const LONG_LIFE: Duration = Duration::from_secs(600);

/// What the file begins with: what it is, and the version of its format.
const MAGIC: &str = "polis-failures 1";

/// Longest file that is read.
const MAX_BYTES: usize = 64;

/// How long the machine is held after so many failures in a row.
pub(crate) fn hold(failures: u32) -> Duration {
    HOLD.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST_HOLD)
}

/// How many failures in a row there are with that of a machine that was up for so long.
fn with_another(before: u32, uptime: Duration) -> u32 {
    if uptime >= LONG_LIFE { 1 } else { before.saturating_add(1) }
}

/// Counts the failure of a machine that was up for so long, and returns how many there are in a row: one, where it cannot be counted.
/// The disk's failure is returned beside it.
pub(crate) fn count(esp: &EspState, uptime: Duration) -> (u32, Result<(), DiskError>) {
    match esp {
        EspState::Mounted { .. } => count_below(Path::new(ROOT), uptime),
        EspState::ReadOnly { .. } | EspState::Volatile => (1, Ok(())),
    }
}

/// Ends the row: the machine ends in order.
pub(crate) fn forget(esp: &EspState) -> Result<(), DiskError> {
    match esp {
        EspState::Mounted { .. } => forget_below(Path::new(ROOT)),
        EspState::ReadOnly { .. } | EspState::Volatile => Ok(()),
    }
}

fn count_below(root: &Path, uptime: Duration) -> (u32, Result<(), DiskError>) {
    let polis = match HostDisk::open(root) {
        Ok(disk) => Layout::new(Arc::new(disk)).esp.polis,
        Err(error) => return (1, Err(error)),
    };
    let before = polis.failures.read(MAX_BYTES).ok().flatten();
    let before = before.and_then(|bytes| decode(str::from_utf8(&bytes).ok()?)).unwrap_or(0);
    let failures = with_another(before, uptime);
    let written = polis.directory.create("machine/failures/directory");
    (failures, written.and_then(|()| polis.failures.write(encode(failures).as_bytes(), "machine/failures")))
}

fn forget_below(root: &Path) -> Result<(), DiskError> {
    let polis = Layout::new(Arc::new(HostDisk::open(root)?)).esp.polis;
    // An end in order is the rule, and it writes nothing.
    if polis.failures.read(MAX_BYTES).is_ok_and(|found| found.is_none()) {
        return Ok(());
    }
    polis.failures.remove("machine/failures/forget")
}

fn encode(failures: u32) -> String {
    format!("{MAGIC} {failures}\n")
}

fn decode(text: &str) -> Option<u32> {
    text.strip_suffix('\n')?.strip_prefix(MAGIC)?.strip_prefix(' ')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn each_failure_in_a_row_holds_longer_up_to_minutes() {
        for (failures, seconds) in [(0, 30), (1, 30), (2, 60), (3, 120), (4, 240), (5, 300), (6, 300), (u32::MAX, 300)]
        {
            assert_eq!(hold(failures), Duration::from_secs(seconds), "{failures}");
        }
        for (before, uptime, expected) in [
            (0, SOON, 1),
            (1, SOON, 2),
            (7, LONG_LIFE.saturating_sub(Duration::from_millis(1)), 8),
            (7, LONG_LIFE, 1),
            (u32::MAX, SOON, u32::MAX),
        ] {
            assert_eq!(with_another(before, uptime), expected, "{before} {uptime:?}");
        }
    }

    #[test]
    fn what_is_counted_lasts_until_an_end_in_order() {
        let root = tempfile::tempdir().unwrap();
        let esp = root.path().join("esp");
        std::fs::create_dir(&esp).unwrap();
        let count = |uptime| {
            let (failures, written) = count_below(root.path(), uptime);
            written.unwrap();
            failures
        };
        assert_eq!([count(SOON), count(SOON), count(SOON)], [1, 2, 3]);
        assert_eq!(count(LONG_LIFE), 1);
        assert_eq!(count(SOON), 2);
        forget_below(root.path()).unwrap();
        forget_below(root.path()).unwrap();
        assert_eq!(count(SOON), 1);
        // What cannot be read counts as nothing, and is replaced.
        for text in ["", "polis-failures 1 x\n", "polis-failures 2 7\n", "polis-failures 1 7", &"x".repeat(100)] {
            std::fs::write(esp.join("polis/failures"), text).unwrap();
            assert_eq!(count(SOON), 1, "{text:?}");
        }
        assert_eq!(count(SOON), 2);
        let nowhere = root.path().join("absent");
        assert!(matches!(count_below(&nowhere, SOON), (1, Err(_))));
    }
}
