//! Kernel messages: the records of `/dev/kmsg` (metropolis.md B.6).

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::{Leveled, Location, Payload, Raw, Severity};

/// The largest record of `/dev/kmsg` in bytes; a read with a buffer of this size always gets a whole one.
pub const KERNEL_RECORD_BYTES: usize = 8192;

/// Reads one record of `/dev/kmsg`, which is what one read of it returns:
/// `priority,sequence,microseconds since the start,flags;text`, then lines of `KEY=value` that are left out here.
///
/// `started` is the wall clock time at which the kernel's own clock was zero, `now` the time of the entry when the record
/// makes no sense and becomes a raw entry.
pub fn kernel(record: &[u8], started: Timestamp, now: Timestamp) -> (Timestamp, Payload) {
    parse(record, started).unwrap_or_else(|| {
        let line = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
        (now, Payload::Raw(Raw::new(line, line.len())))
    })
}

fn parse(record: &[u8], started: Timestamp) -> Option<(Timestamp, Payload)> {
    let record = String::from_utf8_lossy(record);
    let (header, body) = record.split_once(';')?;
    // The kernel may add fields to the header; the first three are fixed.
    let mut fields = header.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let _sequence: u64 = fields.next()?.parse().ok()?;
    let microseconds: i64 = fields.next()?.parse().ok()?;
    let timestamp = started.checked_add(SignedDuration::from_micros(microseconds)).ok()?;
    let text = unescape(body.split('\n').next().unwrap_or_default());
    let location = Location { file: Cow::Borrowed("kernel"), line: 0 };
    Some((timestamp, Payload::Leveled(Leveled::new(severity_of(priority), location, &text))))
}

/// The low three bits of the priority are syslog's level, the others its facility.
fn severity_of(priority: u32) -> Severity {
    match priority & 7 {
        0 | 1 => Severity::Fatal,
        2 | 3 => Severity::Error,
        4 => Severity::Warning,
        _ => Severity::Info,
    }
}

/// The kernel writes bytes that are not printable, and the backslash, as `\x` and two hexadecimal digits.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains("\\x") {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.strip_prefix(b"x").and_then(|after| after.first_chunk::<2>());
        let escaped = digits.filter(|_| *first == b'\\').and_then(|digits| hexadecimal_byte(*digits));
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn hexadecimal_byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}
