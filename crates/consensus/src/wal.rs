//! Whether etcd's write-ahead log says that a member has ever begun to work.
//!
//! When etcd founds a cluster it first makes the log, and then writes into it that this member is its first voter, together with
//! the first hard state. An etcd that is killed between the two finds a log at its next start, takes itself for a member that
//! was restarted, has no voters, and waits for a leader for ever. Nothing was ever acknowledged by such a member, so the remedy
//! is to found again; but that must be certain, so everything that is not understood here counts as a member that has worked.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Name of the log's first file. A log that has others has been at work for long.
const FIRST_FILE: &str = "0000000000000000-0000000000000000.wal";

/// End of the names of the log's files; what etcd prepares for later ends differently.
const SUFFIX: &str = ".wal";

/// How much of the first file is looked at: many times what comes before the first hard state, which is a head and one entry
/// for each first member.
const LOOKED_AT: u64 = 64 << 10;

/// Type of a record with a hard state (etcd's `wal.proto` and `wal.go`, the same from 3.4 to 3.6).
const HARD_STATE: u8 = 3;

/// Types of all records.
const TYPES: std::ops::RangeInclusive<u8> = 1..=5;

/// Tag of the first field of a record, its type.
const TYPE_TAG: u8 = 0x08;

/// Whether the log in this directory holds a hard state, or anything that is not understood. An absent one does not.
///
/// # Errors
///
/// When it cannot be read.
pub(crate) fn has_hard_state(directory: &Path) -> io::Result<bool> {
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    let mut bytes = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name == FIRST_FILE {
            File::open(entry.path())?.take(LOOKED_AT).read_to_end(&mut bytes)?;
        } else if name.to_string_lossy().ends_with(SUFFIX) {
            return Ok(true);
        }
    }
    Ok(holds_hard_state(&bytes))
}

/// Whether these first bytes of a log hold a hard state. A record is preceded by eight bytes, little endian: its length, and in
/// the highest byte 0x80 and the number of bytes that fill it up to a multiple of eight. The file is made with zeros.
fn holds_hard_state(mut bytes: &[u8]) -> bool {
    loop {
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
            // An empty log ends so; one that was cut off anywhere else is not understood.
            return !bytes.is_empty();
        };
        let head = u64::from_le_bytes(*head);
        if head == 0 {
            return rest.iter().any(|byte| *byte != 0);
        }
        let length = usize::try_from(head & ((1 << 56) - 1)).unwrap_or(usize::MAX);
        let padding = if head >> 63 == 1 { usize::from((head >> 56) as u8 & 0x07) } else { 0 };
        let Some((record, rest)) = rest.split_at_checked(length.saturating_add(padding)) else { return true };
        match record {
            [TYPE_TAG, HARD_STATE, ..] => return true,
            [TYPE_TAG, kind, ..] if TYPES.contains(kind) => bytes = rest,
            _ => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as etcd frames it.
    fn record(kind: u8, data: &[u8]) -> Vec<u8> {
        let mut record = vec![TYPE_TAG, kind, 0x10, 0];
        record.extend_from_slice(data);
        let padding = record.len().next_multiple_of(8) - record.len();
        let flag = if padding == 0 { 0 } else { 0x80 | padding as u64 };
        let head = record.len() as u64 | flag << 56;
        record.resize(record.len() + padding, 0);
        [&head.to_le_bytes()[..], &record].concat()
    }

    #[test]
    fn only_a_log_that_is_understood_and_has_no_hard_state_is_unused() {
        let head = [record(4, b""), record(1, &[7; 26]), record(5, &[1; 6])].concat();
        let founded = [head.clone(), record(2, &[9; 180]), record(3, &[1; 8])].concat();
        let zeros = vec![0; 1000];
        for (name, bytes, expected) in [
            ("nothing", vec![], false),
            ("zeros", zeros.clone(), false),
            ("a head", head.clone(), false),
            ("a head and zeros", [head.clone(), zeros.clone()].concat(), false),
            ("entries without a hard state", [head.clone(), record(2, &[9; 180]), zeros.clone()].concat(), false),
            ("a hard state", [founded.clone(), zeros.clone()].concat(), true),
            ("a type that is not known", [head.clone(), record(6, b""), zeros.clone()].concat(), true),
            ("a record that is cut off", founded[..head.len() + 20].to_vec(), true),
            ("a frame that is cut off", founded[..head.len() + 3].to_vec(), true),
            ("something after zeros", [head.clone(), zeros, vec![1]].concat(), true),
            ("no log at all", b"what somebody else has written here".to_vec(), true),
        ] {
            assert_eq!(holds_hard_state(&bytes), expected, "{name}");
        }
    }

    #[test]
    fn a_log_of_several_files_was_used_and_an_absent_one_was_not() {
        let directory = tempfile::tempdir().unwrap();
        let wal = directory.path().join("wal");
        assert!(!has_hard_state(&wal).unwrap());
        std::fs::create_dir(&wal).unwrap();
        std::fs::write(wal.join("0.tmp"), [1; 64]).unwrap();
        assert!(!has_hard_state(&wal).unwrap());
        std::fs::write(wal.join(FIRST_FILE), record(4, b"")).unwrap();
        assert!(!has_hard_state(&wal).unwrap());
        std::fs::write(wal.join("0000000000000001-0000000000000007.wal"), []).unwrap();
        assert!(has_hard_state(&wal).unwrap());
    }
}
