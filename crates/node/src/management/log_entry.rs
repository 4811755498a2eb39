//! Entries of the log as they go over the wire (metropolis.md B.5).

use jiff::Timestamp;
use polis_logtree::{Entry, Leveled, Payload, Severity};
use polis_proto::logtree::log_entry::{self, Kind};
use polis_proto::logtree::{LeveledLogSeverity, LogEntry};

/// The entry on the wire. What is no UTF-8 has been replaced.
pub(super) fn on_wire(entry: &Entry) -> LogEntry {
    let kind = match &entry.payload {
        Payload::Leveled(leveled) => Kind::Leveled(leveled_on_wire(leveled, entry.timestamp)),
        Payload::Raw(raw) => {
            let data = raw.text().into_owned();
            // Clients check that the line is no longer than it was; a replacement can be longer than what it replaces.
            let cut = raw.original_length() - raw.data().len();
            let original_length = i64::try_from(data.len() + cut).unwrap_or(i64::MAX);
            Kind::Raw(log_entry::Raw { data, original_length })
        }
    };
    LogEntry { dn: entry.name.to_string(), kind: Some(kind) }
}

fn leveled_on_wire(leveled: &Leveled, timestamp: Timestamp) -> log_entry::Leveled {
    let severity = match leveled.severity {
        Severity::Info => LeveledLogSeverity::Info,
        Severity::Warning => LeveledLogSeverity::Warning,
        Severity::Error => LeveledLogSeverity::Error,
        Severity::Fatal => LeveledLogSeverity::Fatal,
    };
    log_entry::Leveled {
        lines: leveled.lines().map(str::to_owned).collect(),
        timestamp: Some(time_on_wire(timestamp)),
        severity: severity.into(),
        location: leveled.location.to_string(),
    }
}

/// On the wire the nanoseconds count forward, also before 1970.
fn time_on_wire(timestamp: Timestamp) -> prost_types::Timestamp {
    let nanoseconds = timestamp.as_nanosecond();
    let second = 1_000_000_000;
    prost_types::Timestamp {
        seconds: i64::try_from(nanoseconds.div_euclid(second)).unwrap_or_default(),
        nanos: i32::try_from(nanoseconds.rem_euclid(second)).unwrap_or_default(),
    }
}

/// Says in the stream that entries are missing at this place.
pub(super) fn missing(name: &str, count: u64, only_raw: bool) -> LogEntry {
    let line = format!("[{count} entries are missing here: they came faster than this reader took them]");
    let kind = if only_raw {
        let original_length = i64::try_from(line.len()).unwrap_or(i64::MAX);
        Kind::Raw(log_entry::Raw { data: line, original_length })
    } else {
        Kind::Leveled(log_entry::Leveled {
            lines: vec![line],
            timestamp: Some(time_on_wire(Timestamp::now())),
            severity: LeveledLogSeverity::Warning.into(),
            location: format!("{}:{}", file!(), line!()),
        })
    };
    LogEntry { dn: name.to_owned(), kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use polis_logtree::{DistinguishedName, Location, Raw};

    use super::*;

    fn wire(payload: Payload, timestamp: Timestamp) -> Kind {
        let name = DistinguishedName::parse("root.a").unwrap();
        let entry = on_wire(&Entry { name, timestamp, payload });
        assert_eq!(entry.dn, "root.a");
        entry.kind.unwrap()
    }

    #[test]
    fn a_leveled_entry_keeps_everything() {
        let location = Location { file: "a/b.rs".into(), line: 7 };
        let leveled = Leveled::new(Severity::Error, location, "one\ntwo\r\n");
        let before_1970 = Timestamp::from_nanosecond(-1).unwrap();
        let Kind::Leveled(wire) = wire(Payload::Leveled(leveled), before_1970) else { panic!("it is leveled") };
        assert_eq!(wire.lines, ["one", "two"]);
        assert_eq!(wire.severity(), LeveledLogSeverity::Error);
        assert_eq!(wire.location, "a/b.rs:7");
        assert_eq!(wire.timestamp, Some(prost_types::Timestamp { seconds: -1, nanos: 999_999_999 }));
    }

    #[test]
    fn a_raw_entry_is_never_longer_than_it_says() {
        let table: [(&[u8], usize, &str, i64); 4] = [
            (b"whole", 5, "whole", 5),
            (b"cut", 2000, "cut", 2000),
            (b"a\xff\xfeb", 4, "a<INVALID>b", 11),
            (b"a\xff", 1000, "a<INVALID>", 1008),
        ];
        for (line, length, data, original_length) in table {
            let Kind::Raw(wire) = wire(Payload::Raw(Raw::new(line, length)), Timestamp::UNIX_EPOCH) else {
                panic!("it is raw")
            };
            assert_eq!((&*wire.data, wire.original_length), (data, original_length));
        }
    }
}
