//! One entry of the kept log as a line, and reading them again.

use std::fs;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use polis_logtree::{Entry, Payload};
use serde::{Deserialize, Serialize};

use super::segments;

/// One entry of the log as it is kept: one line of JSON. Add fields, do not change them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEntry {
    /// When it was written, by the node's own clock of that moment.
    pub timestamp: Timestamp,
    /// Distinguished name it was written under; empty for what is said of the kept log itself.
    pub dn: String,
    /// `info`, `warning`, `error` or `fatal`; `raw` for a line of another program.
    pub severity: String,
    /// Where in the source; absent for raw ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub location: Option<String>,
    /// The text, lines joined by line breaks.
    pub message: String,
}

/// What was read of a kept log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptLog {
    /// The entries, in the order in which they were written.
    pub entries: Vec<KeptEntry>,
    /// Lines that are no entry: what power cuts have torn.
    pub damaged: u64,
}

/// Appends an entry as one line.
pub(super) fn encode(entry: &Entry, text: &mut String) {
    let location = match &entry.payload {
        Payload::Leveled(leveled) => Some(leveled.location.to_string()),
        Payload::Raw(_) => None,
    };
    let severity = entry.severity().map_or_else(|| "raw".to_owned(), |severity| severity.to_string());
    let (dn, message) = (entry.name.to_string(), entry.text().into_owned());
    push(&KeptEntry { timestamp: entry.timestamp, dn, severity, location, message }, text);
}

/// Appends that entries are missing here.
pub(super) fn encode_missed(count: u64, text: &mut String) {
    let message = format!("{count} entries were not kept: they came faster than the disk took them");
    let (dn, severity) = (String::new(), "warning".to_owned());
    push(&KeptEntry { timestamp: Timestamp::now(), dn, severity, location: None, message }, text);
}

fn push(entry: &KeptEntry, text: &mut String) {
    // Text and numbers always have a form in JSON, which has no line break in it.
    text.push_str(&serde_json::to_string(entry).unwrap_or_default());
    text.push('\n');
}

/// Reads the log that is kept below this data directory. What is torn is left out and counted; a directory that is absent is an
/// empty log.
///
/// # Errors
///
/// When the disk fails.
pub fn read(data: &Path) -> io::Result<KeptLog> {
    let directory = data.join(super::LOG_DIRECTORY);
    let segments = match segments::list(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KeptLog::default()),
        segments => segments?,
    };
    let mut log = KeptLog::default();
    for segment in segments {
        let bytes = fs::read(segment.path(&directory))?;
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(entry) => log.entries.push(entry),
                Err(_) => log.damaged += 1,
            }
        }
    }
    Ok(log)
}
