//! What etcd says when it cannot read its own data. Pure.
//!
//! Nothing of etcd's tells it by a code: it ends with 1 or 2, as for anything else. So its own words are the only witness, found by
//! damaging the files of an etcd 3.4, and read in the sources of 3.5 and 3.6. A line that is not here is another fault, and only
//! costs the member the comfort of being replaced by itself. What may pass by itself, a full disk above all, must not be here.

/// Parts of lines of etcd that tell that what is on the disk is not what it has written, each with what was done to the data in the
/// example.
const SIGNS: [&str; 17] = [
    // A byte of the log has changed, or a part of it is zeros.
    "walpb: crc mismatch",
    "wal: crc mismatch",
    // Of a record only the beginning was written: a power cut, within one sector.
    "proto: Record: ",
    // What was written can be taken for a record, and not for what the record should hold.
    "unmarshal should never fail",
    // The beginning of the log is something else.
    "wal: max entry size limit exceeded",
    "wal: file not found",
    "wal: conflicting metadata found",
    "wal: snapshot mismatch",
    "wal: slice bounds out of range",
    // The log breaks off in the middle of a record, in another file than the last.
    "failed to read WAL, cannot be repaired",
    "failed to repair WAL",
    // The log is an empty file.
    "cannot use none as id",
    // The database is missing, or an empty file.
    "failed to recover v3 backend from snapshot",
    // The first pages of the database are something else.
    "invalid database",
    "failed to open database",
    // Inner pages of the database are something else.
    "failed to get all reachable pages",
    // The database is shorter than it says, so that reading it faults.
    "unexpected fault address",
];

/// Parts of a line that together tell the same: the codec has ended etcd, in words that depend on the byte that has changed. Elsewhere etcd
/// copes with what it cannot decode.
const CODEC_HAS_ENDED_IT: [&str; 2] = [r#""level":"fatal""#, r#""error":"proto: "#];

/// Parts of lines that name another reason, whatever else they say: the file is there and cannot be had.
const OTHER_REASONS: [&str; 6] = [
    "no space left on device",
    "permission denied",
    "operation not permitted",
    "too many open files",
    "cannot allocate memory",
    "timeout",
];

/// Whether a line says that the member's data are damaged.
#[must_use]
pub(crate) fn is_sign(line: &str) -> bool {
    let is_told =
        SIGNS.iter().any(|sign| line.contains(sign)) || CODEC_HAS_ENDED_IT.iter().all(|part| line.contains(part));
    is_told && !OTHER_REASONS.iter().any(|reason| line.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_data_are_told_from_what_may_pass() {
        for (line, expected) in [
            // As etcd 3.4.23 has said them.
            (r#"{"level":"fatal","msg":"discovery failed","error":"walpb: crc mismatch"}"#, true),
            (r#"{"level":"fatal","msg":"discovery failed","error":"wal: max entry size limit exceeded"}"#, true),
            (
                r#"{"level":"fatal","msg":"discovery failed","error":"proto: Record: illegal tag 0 (wire type 0)"}"#,
                true,
            ),
            // One byte changed, in each of 400 places of a log of 10 KiB: these two were 7 of the 361 deaths.
            (r#"{"level":"fatal","msg":"discovery failed","error":"proto: illegal wireType 7"}"#, true),
            (r#"{"level":"fatal","msg":"discovery failed","error":"proto: wrong wireType = 3 for field Type"}"#, true),
            ("panic: cannot use none as id", true),
            (
                r#"{"level":"panic","msg":"failed to recover v3 backend from snapshot","error":"failed to find database snapshot file (snap: snapshot file doesn't exist)"}"#,
                true,
            ),
            (r#"{"level":"panic","msg":"failed to open database","path":"db","error":"invalid database"}"#, true),
            ("panic: freepages: failed to get all reachable pages (page 7184635852989743545: out of bounds: 81)", true),
            ("unexpected fault address 0x7fb68c035000", true),
            // Others.
            (r#"{"level":"fatal","msg":"failed to open database","error":"no space left on device"}"#, false),
            (r#"{"level":"panic","msg":"failed to open database","error":"timeout"}"#, false),
            (r#"{"level":"fatal","msg":"failed to open WAL","error":"operation not permitted"}"#, false),
            (r#"{"level":"fatal","msg":"discovery failed","error":"bind: address already in use"}"#, false),
            // What etcd repairs by itself.
            (r#"{"level":"info","msg":"repairing","path":"0000000000000000-0000000000000000.wal"}"#, false),
            (r#"{"level":"warn","msg":"failed to unmarshal snappb.Snapshot","error":"proto: wrong wireType"}"#, false),
            ("", false),
        ] {
            assert_eq!(is_sign(line), expected, "{line}");
        }
    }
}
