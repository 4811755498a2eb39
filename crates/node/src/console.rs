//! The log tree on standard error.
//!
//! Who reads there may be slow, or may have stopped reading without closing. Writing then blocks for as long as that
//! lasts, and nothing of the node may depend on it: a thread of its own writes, the log tree drops what it cannot take
//! (and it says so once it goes on), and the end of the node waits for it only so long.

use std::io::{ErrorKind, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use polis_logtree::console::{Style, full};
use polis_logtree::{Backlog, DistinguishedName, Entry, Item, LogTree, Payload, ReadOptions, Reader};
use polis_supervisor::BoxError;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::options::LogFormat;

/// How long the end of the node waits for its last words to be written. A terminal or a pipe that is read takes them within
/// milliseconds; where nobody reads, they are lost, which is better than a node that cannot be stopped.
const FINISH_DEADLINE: Duration = Duration::from_secs(2);

/// Copies the log to standard error until the log tree is gone. It runs beside the supervisor, so that the last words of the
/// supervisor are seen too.
pub(crate) struct Console {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Console {
    /// Starts copying from the beginning of the log. Call it within a runtime.
    pub(crate) fn start(tree: &LogTree, format: LogFormat) -> Result<Self, BoxError> {
        let options =
            ReadOptions { backlog: Backlog::All, stream: true, with_children: true, ..ReadOptions::default() };
        let reader = tree.read(&DistinguishedName::root(), options)?;
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let runtime = Handle::current();
        // The thread is not joined: while it is blocked, only the end of the process ends it.
        std::thread::Builder::new().name("console".into()).spawn(move || {
            runtime.block_on(copy(reader, format, stopped));
            // Nobody waits any more when the deadline is over.
            let _ = end.send(());
        })?;
        Ok(Self { stop, ended })
    }

    /// Prints what has been logged so far and stops, unless nobody takes it within [`FINISH_DEADLINE`].
    pub(crate) async fn finish(self) {
        // Fails only when the copying has ended already, as it does when standard error is closed at its other end.
        let _ = self.stop.send(());
        // What is not written by then will not be.
        let _ = timeout(FINISH_DEADLINE, self.ended).await;
    }
}

async fn copy(mut reader: Reader, format: LogFormat, mut stopped: oneshot::Receiver<()>) {
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
        write_whole(&mut std::io::stderr(), text.as_bytes())
    }

    fn missed(&self, count: u64) -> std::io::Result<()> {
        let text = match self.format {
            LogFormat::Console => format!("... {count} log entries were not printed: standard error is too slow\n"),
            LogFormat::Json => format!("{}\n", serde_json::json!({ "missed": count })),
        };
        write_whole(&mut std::io::stderr(), text.as_bytes())
    }
}

/// Writes all of `bytes`, and waits for room where `output` does not block: a terminal or pipe that this process shares with
/// others can be set so by any of them, and a full one is then no error.
fn write_whole(output: &mut (impl Write + AsFd), mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(output, PollFlags::OUT)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
