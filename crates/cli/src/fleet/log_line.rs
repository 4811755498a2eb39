//! Entries of a node's log, as they are shown.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use polis_proto::logtree::{LeveledLogSeverity, LogEntry, log_entry::Kind};
use serde_json::{Value, json};

use crate::view::Paint;
use crate::wire;

/// Columns of the distinguished name. A longer one pushes the rest to the right (metropolis.md B.4).
const NAME_COLUMNS: usize = 32;

/// The entry as full lines, each complete in itself: `name  I0102 15:04:05.000000 file.rs:12] text`, with `R` for what a
/// process wrote itself.
pub(super) fn text(entry: &LogEntry, paint: Paint) -> String {
    let mut text = String::new();
    let name = format!("{:NAME_COLUMNS$}", entry.dn);
    match &entry.kind {
        Some(Kind::Leveled(leveled)) => {
            let letter = match LeveledLogSeverity::try_from(leveled.severity) {
                Ok(LeveledLogSeverity::Info) => "I".to_owned(),
                Ok(LeveledLogSeverity::Warning) => paint.yellow("W"),
                Ok(LeveledLogSeverity::Error) => paint.red("E"),
                Ok(LeveledLogSeverity::Fatal) => paint.red("F"),
                Ok(LeveledLogSeverity::Invalid) | Err(_) => "?".to_owned(),
            };
            let stamp = leveled.timestamp.as_ref().and_then(timestamp);
            let stamp = stamp.map(|time| TimeZone::UTC.to_datetime(time).strftime("%m%d %H:%M:%S%.6f").to_string());
            let stamp = stamp.unwrap_or_else(|| "---- --:--:--.------".to_owned());
            // The file alone tells enough; where it lies does not.
            let location = leveled.location.rsplit('/').next().unwrap_or_default();
            for line in &leveled.lines {
                let _ = writeln!(text, "{} {letter}{stamp} {location}] {line}", paint.dim(&name));
            }
        }
        Some(Kind::Raw(raw)) => {
            let length = i64::try_from(raw.data.len()).unwrap_or(i64::MAX);
            let cut = if raw.original_length > length {
                format!(" ({} bytes in all)", raw.original_length)
            } else {
                String::new()
            };
            let _ = writeln!(text, "{} R {}{cut}", paint.dim(&name), raw.data);
        }
        None => {
            let _ = writeln!(text, "{} ? an entry of a kind that this version does not know", paint.dim(&name));
        }
    }
    text
}

/// The entry as JSON.
pub(super) fn json(entry: &LogEntry) -> Value {
    match &entry.kind {
        Some(Kind::Leveled(leveled)) => json!({
            "dn": entry.dn,
            "timestamp": leveled.timestamp.as_ref().and_then(timestamp).map(|time| time.to_string()),
            "severity": wire::name::<LeveledLogSeverity>(
                leveled.severity,
                LeveledLogSeverity::as_str_name,
                "LEVELED_LOG_SEVERITY_",
            ),
            "location": leveled.location,
            "lines": leveled.lines,
        }),
        Some(Kind::Raw(raw)) => json!({"dn": entry.dn, "raw": raw.data, "original_length": raw.original_length}),
        None => json!({"dn": entry.dn}),
    }
}

fn timestamp(timestamp: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(timestamp.seconds, timestamp.nanos).ok()
}

#[cfg(test)]
mod tests {
    use polis_proto::logtree::log_entry::{Leveled, Raw};

    use super::*;

    fn leveled() -> LogEntry {
        LogEntry {
            dn: "root.manager".into(),
            kind: Some(Kind::Leveled(Leveled {
                lines: vec!["one".into(), "two".into()],
                timestamp: Some(prost_types::Timestamp { seconds: 1_000_000_000, nanos: 42_000 }),
                severity: LeveledLogSeverity::Warning.into(),
                location: "crates/a/src/file.rs:12".into(),
            })),
        }
    }

    fn raw() -> LogEntry {
        let kind = Kind::Raw(Raw { data: "cut off".into(), original_length: 9_000 });
        LogEntry { dn: "root.manager.consensus.etcd.server".into(), kind: Some(kind) }
    }

    #[test]
    fn every_line_is_complete() {
        assert_eq!(
            text(&leveled(), Paint::plain()),
            "root.manager                     W0909 01:46:40.000042 file.rs:12] one\n\
             root.manager                     W0909 01:46:40.000042 file.rs:12] two\n"
        );
        assert_eq!(text(&raw(), Paint::plain()), "root.manager.consensus.etcd.server R cut off (9000 bytes in all)\n");
    }

    #[test]
    fn entries_in_json() {
        assert_eq!(
            json(&leveled()),
            json!({
                "dn": "root.manager",
                "timestamp": "2001-09-09T01:46:40.000042Z",
                "severity": "WARNING",
                "location": "crates/a/src/file.rs:12",
                "lines": ["one", "two"],
            })
        );
        assert_eq!(json(&raw())["original_length"], 9_000);
    }
}
