//! The log tree on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;

use polis_logtree::console::{Style, full};
use polis_logtree::{Backlog, DistinguishedName, Entry, Item, LogTree, Payload, ReadError, ReadOptions, Reader};
use tokio::task::JoinHandle;

use crate::options::LogFormat;

/// Copies the log to standard error until the log tree is gone. It runs beside the supervisor, so that the last words of the
/// supervisor are seen too.
pub(crate) struct Console {
    task: JoinHandle<()>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Console {
    /// Starts copying from the beginning of the log.
    pub(crate) fn start(tree: &LogTree, format: LogFormat) -> Result<Self, ReadError> {
        let options = ReadOptions { backlog: Backlog::All, stream: true, with_children: true, ..ReadOptions::default() };
        let reader = tree.read(&DistinguishedName::root(), options)?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "it must outlive the supervisor, whose last words it prints")]
        let task = tokio::spawn(copy(reader, format, stopped));
        Ok(Self { task, stop })
    }

    /// Prints what has been logged so far and stops.
    pub(crate) async fn finish(self) {
        // Both fail only when the copying has ended already, as it does when nobody reads standard error any more.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn copy(mut reader: Reader, format: LogFormat, mut stopped: tokio::sync::oneshot::Receiver<()>) {
    let writer = Writer::new(format);
    for entry in std::mem::take(&mut reader.backlog) {
        if writer.entry(&entry).is_err() {
            return;
        }
    }
    loop {
        let item = tokio::select! {
            biased;
            item = reader.next() => item,
            _ = &mut stopped => return,
        };
        let written = match item {
            None => return,
            Some(Item::Entry(entry)) => writer.entry(&entry),
            Some(Item::Missed(count)) => writer.missed(count),
        };
        if written.is_err() {
            return;
        }
    }
}

/// Writes entries in the chosen form. Each goes out in one call, so that lines of several processes do not mix.
struct Writer {
    format: LogFormat,
    style: Style,
}

impl Writer {
    fn new(format: LogFormat) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { format, style: Style { colour, ..Style::default() } }
    }

    fn entry(&self, entry: &Arc<Entry>) -> std::io::Result<()> {
        let text = match self.format {
            LogFormat::Console => format!("{}\n", full(entry, self.style)),
            LogFormat::Json => format!("{}\n", json(entry)),
        };
        std::io::stderr().write_all(text.as_bytes())
    }

    fn missed(&self, count: u64) -> std::io::Result<()> {
        let text = match self.format {
            LogFormat::Console => format!("... {count} log entries were not printed: standard error is too slow\n"),
            LogFormat::Json => format!("{}\n", serde_json::json!({ "missed": count })),
        };
        std::io::stderr().write_all(text.as_bytes())
    }
}

fn json(entry: &Entry) -> serde_json::Value {
    let mut value = serde_json::json!({
        "timestamp": entry.timestamp.to_string(),
        "dn": entry.name.to_string(),
        "message": entry.text(),
    });
    let severity = match &entry.payload {
        Payload::Leveled(leveled) => {
            value["location"] = leveled.location.to_string().into();
            leveled.severity.to_string().to_lowercase()
        }
        Payload::Raw(_) => "raw".to_owned(),
    };
    value["severity"] = severity.into();
    value
}
