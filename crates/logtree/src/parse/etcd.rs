//! etcd's log: one JSON object per line, as zap writes them (metropolis.md B.6).

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::fields::write_text;
use crate::{Leveled, Line, Location, Payload, Raw, Severity};

/// Longest line that is parsed, in bytes. Metropolis takes 4096; etcd's line about its own configuration at start comes
/// close to that, and members with long addresses pass it.
pub const ETCD_LINE_BYTES: usize = 8192;

/// Reads one line of etcd. `now` is the time of the entry when the line does not say.
///
/// The severity comes from `level`, the place from `caller`, the text from `msg`; every other field is put behind the
/// text as `key=value`, in the order of the line, and texts of several lines (stack traces) become lines of the entry. A
/// line that is cut, no JSON, or without a known level and message becomes a raw entry. The lines of etcd's gRPC, which are no JSON,
/// are known as well.
pub fn etcd(line: Line<'_>, now: Timestamp) -> (Timestamp, Payload) {
    let parsed = if line.is_cut() { None } else { parse(line.data, now).or_else(|| parse_grpc(line.data, now)) };
    parsed.unwrap_or_else(|| (now, Payload::Raw(Raw::new(line.data, line.original_length))))
}

fn parse(line: &[u8], now: Timestamp) -> Option<(Timestamp, Payload)> {
    let Fields(fields) = serde_json::from_slice(line).ok()?;
    let mut severity = None;
    let mut timestamp = None;
    let mut location = None;
    let mut text = None;
    let mut rest = Vec::new();
    for (key, value) in fields {
        // The first of each is taken; a field that is not what it should be is kept like an unknown one.
        let taken = match &*key {
            "level" => take(&mut severity, || severity_of(value.as_str()?)),
            "ts" => take(&mut timestamp, || timestamp_of(&value)),
            "caller" => take(&mut location, || value.as_str()?.parse().ok()),
            "msg" => take(&mut text, || value.as_str().map(str::to_owned)),
            _ => false,
        };
        if !taken {
            rest.push((key, value));
        }
    }
    let (severity, mut text) = (severity?, text?);
    append_fields(&mut text, &rest);
    let leveled = Leveled::new(severity, location.unwrap_or(Location::UNKNOWN), &text);
    Some((timestamp.unwrap_or(now), Payload::Leveled(leveled)))
}

/// Reads a line as etcd's gRPC writes them with Go's own log: `WARNING: 2026/11/30 18:45:35 [core] grpc: ...`. The time has no zone, so
/// that of the entry is taken.
fn parse_grpc(line: &[u8], now: Timestamp) -> Option<(Timestamp, Payload)> {
    const TIME: &[u8] = b"0000/00/00 00:00:00 ";
    let (level, rest) = std::str::from_utf8(line).ok()?.split_once(": ")?;
    let severity = match level {
        "INFO" => Severity::Info,
        "WARNING" => Severity::Warning,
        "ERROR" | "FATAL" => Severity::Error,
        _ => return None,
    };
    let (time, text) = rest.split_at_checked(TIME.len())?;
    let shape = time.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    let is_time = shape.eq(TIME.iter().copied());
    is_time.then(|| (now, Payload::Leveled(Leveled::new(severity, Location::UNKNOWN, text))))
}

fn take<T>(slot: &mut Option<T>, value: impl FnOnce() -> Option<T>) -> bool {
    if slot.is_none() {
        *slot = value();
        slot.is_some()
    } else {
        false
    }
}

fn severity_of(level: &str) -> Option<Severity> {
    match level {
        "debug" | "info" => Some(Severity::Info),
        "warn" => Some(Severity::Warning),
        "error" | "dpanic" | "panic" | "fatal" => Some(Severity::Error),
        _ => None,
    }
}

/// zap writes either RFC 3339 or seconds since the epoch, by configuration.
fn timestamp_of(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(seconds) => {
            let seconds = jiff::SignedDuration::try_from_secs_f64(seconds.as_f64()?).ok()?;
            Timestamp::from_duration(seconds).ok()
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn append_fields(text: &mut String, fields: &[(Cow<'_, str>, Value)]) {
    let is_long = |value: &Value| value.as_str().is_some_and(|text| text.contains('\n'));
    for (key, value) in fields.iter().filter(|(_, value)| !is_long(value)) {
        text.push(' ');
        text.push_str(key);
        text.push('=');
        match value {
            Value::String(value) => write_text(text, value).unwrap_or_default(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                text.push_str(&value.to_string());
            }
        }
    }
    for (key, value) in fields.iter().filter(|(_, value)| is_long(value)) {
        text.push('\n');
        text.push_str(key);
        text.push(':');
        for line in value.as_str().unwrap_or_default().trim_matches('\n').split('\n') {
            text.push_str("\n  ");
            text.push_str(line);
        }
    }
}

/// The fields of an object in the order of the line, also when a key is there twice: zap writes what it is given.
struct Fields<'a>(Vec<(Cow<'a, str>, Value)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<Cow<'_, str>, Value>()? {
                    fields.push((key, value));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod grpc_tests {
    use super::*;

    #[test]
    fn lines_of_grpc_have_their_severity_and_nothing_else_is_taken_for_one() {
        let read = |line: &str| match parse_grpc(line.as_bytes(), Timestamp::UNIX_EPOCH) {
            Some((_, Payload::Leveled(leveled))) => Some(format!("{leveled:?}")),
            Some((_, Payload::Raw(_))) | None => None,
        };
        for level in ["INFO", "WARNING", "ERROR", "FATAL"] {
            let text = read(&format!("{level}: 2026/11/30 18:45:35 [core] grpc: it ends")).unwrap();
            assert!(text.contains("[core] grpc: it ends") && !text.contains("18:45"), "{text}");
        }
        for line in ["NOTE: 2026/11/30 18:45:35 x", "WARNING: 2026-11-30 18:45:35 x", "WARNING: short", "panic: x", ""]
        {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
