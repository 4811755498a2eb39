//! The log of the node, kept on its data partition, so that what was said before a restart can be read after it.
//!
//! `data/log/` has *segments*, named by rising numbers: files of lines, each line one entry as JSON ([`KeptEntry`]). Every start
//! begins a new one, so what a power cut has torn is at the end of one segment and in nobody's way. All of them together are at
//! most [`LOG_BYTES`]; the oldest go first.
//!
//! Entries are written every [`WRITE_INTERVAL`] and flushed to the disk every [`FLUSH_INTERVAL`] and at an orderly end: a power cut
//! costs what was said in that time, and etcd, which waits for the same disk, is not held up by log lines. Nothing is held open in
//! between, so the partition can be closed at any moment.

mod record;
mod segments;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polis_condition::Severity;
use polis_logtree::{Backlog, DistinguishedName, Item, ReadOptions, Reader};
use polis_storage::{DIRECTORY_MODE, FILE_MODE};
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::names::changed;
pub use record::{KeptEntry, KeptLog, read};
pub use segments::{LOG_BYTES, SEGMENT_BYTES};
use segments::{Segment, superfluous};

/// Name of the condition that the log cannot be kept on the disk.
pub const LOG_NOT_KEPT: &str = "log-not-kept";

/// The directory below the data directory.
pub(crate) const LOG_DIRECTORY: &str = "log";

/// The marker of a data partition that is open: the last thing that is written when it is formatted.
const MARKER: &str = "partition";

/// How often entries are written.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// How often what was written is flushed to the disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// Text that is collected before it is written, whatever the time: bounds the memory when something is very chatty.
const BATCH_BYTES: usize = 256 << 10;

/// Keeps the log while the data partition is open: a runnable. `begun` is set once what is in memory was kept: a later life goes on
/// with what comes, as nothing is to be kept twice.
pub(crate) async fn keep(
    context: Context,
    mut data: watch::Receiver<Option<PathBuf>>,
    begun: Arc<AtomicBool>,
) -> RunnableResult {
    context.healthy();
    loop {
        let open = data.borrow_and_update().clone();
        match open {
            Some(directory) => keep_in(&context, &directory, &mut data, &begun).await?,
            None => context.unless_cancelled(changed(&mut data)).await?,
        }
    }
}

/// Whether the partition with this data directory is open: without it, what is written there would be written beside it.
pub(crate) fn is_open(data: &Path) -> bool {
    data.join(MARKER).exists()
}

/// Makes the directory of the log in an open data directory.
pub(crate) fn make_log_directory(data: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(data.join(LOG_DIRECTORY)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Keeps the log until the partition is closed.
async fn keep_in(
    context: &Context,
    data: &Path,
    closed: &mut watch::Receiver<Option<PathBuf>>,
    begun: &AtomicBool,
) -> RunnableResult {
    let backlog = if begun.swap(true, Ordering::Relaxed) { Backlog::None } else { Backlog::All };
    let options = ReadOptions { backlog, stream: true, with_children: true, ..ReadOptions::default() };
    let mut reader = context.log_tree().read(&DistinguishedName::root(), options)?;
    let mut writer = Writer::new(data.to_owned());
    let mut batch = String::new();
    for entry in std::mem::take(&mut reader.backlog) {
        record::encode(&entry, &mut batch);
        if batch.len() >= BATCH_BYTES {
            writer = write(context, writer, &mut batch, Flush::WhenDue).await;
        }
    }
    let mut next = Instant::now();
    loop {
        let full = batch.len() >= BATCH_BYTES;
        tokio::select! {
            biased;
            cancelled = context.cancelled() => {
                take_what_is_there(&mut reader, &mut batch);
                writer = write(context, writer, &mut batch, Flush::Now).await;
                drop(writer);
                return Err(cancelled.into());
            }
            () = changed(closed) => return Ok(()),
            () = sleep_until(next), if !full => {}
            () = std::future::ready(()), if full => {}
            item = reader.next(), if !full => {
                match item {
                    Some(item) => take(item, &mut batch),
                    None => return Ok(()),
                }
                continue;
            }
        }
        writer = write(context, writer, &mut batch, Flush::WhenDue).await;
        next = Instant::now() + WRITE_INTERVAL;
    }
}

fn take(item: Item, batch: &mut String) {
    match item {
        Item::Entry(entry) => record::encode(&entry, batch),
        Item::Missed(count) => record::encode_missed(count, batch),
    }
}

fn take_what_is_there(reader: &mut Reader, batch: &mut String) {
    use futures::FutureExt as _;
    while let Some(Some(item)) = reader.next().now_or_never()
        && batch.len() < BATCH_BYTES
    {
        take(item, batch);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    WhenDue,
    Now,
}

/// Writes the batch, whatever comes of it. What cannot be written is dropped, and said.
async fn write(context: &Context, mut writer: Writer, batch: &mut String, flush: Flush) -> Writer {
    let text = std::mem::take(batch);
    let (writer, written) = context
        .blocking(move || {
            let written = writer.write(text.as_bytes(), flush);
            (writer, written)
        })
        .await;
    match written {
        Ok(()) => context.conditions().clear(LOG_NOT_KEPT),
        Err(error) => context.conditions().raise(
            LOG_NOT_KEPT,
            Severity::Warning,
            format!("the log cannot be kept in {}: {error}", writer.directory.display()),
            "what is said meanwhile is in memory only; make room on the data partition, or look at its disk",
        ),
    }
    writer
}

/// Writes segments.
struct Writer {
    data: PathBuf,
    directory: PathBuf,
    /// The segment that is written to; none before the first of this start.
    current: Option<Segment>,
    flushed: Instant,
    unflushed: bool,
}

impl Writer {
    fn new(data: PathBuf) -> Self {
        let directory = data.join(LOG_DIRECTORY);
        Self { data, directory, current: None, flushed: Instant::now(), unflushed: false }
    }

    fn write(&mut self, text: &[u8], flush: Flush) -> io::Result<()> {
        let due = flush == Flush::Now || self.flushed.elapsed() >= FLUSH_INTERVAL;
        if text.is_empty() && !(due && self.unflushed) {
            return Ok(());
        }
        if !is_open(&self.data) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the data partition is not open"));
        }
        let (mut file, is_new) = self.open(text.len() as u64)?;
        file.write_all(text)?;
        self.unflushed = true;
        if due || is_new {
            file.sync_data()?;
            (self.flushed, self.unflushed) = (Instant::now(), false);
        }
        Ok(())
    }

    /// Opens the segment that this many bytes go to: a new one if there is none of this start, or if they do not fit.
    fn open(&mut self, bytes: u64) -> io::Result<(File, bool)> {
        let mut options = OpenOptions::new();
        options.append(true).mode(FILE_MODE);
        if let Some(segment) = &mut self.current
            && segment.bytes + bytes <= SEGMENT_BYTES
        {
            segment.bytes += bytes;
            return Ok((options.open(segment.path(&self.directory))?, false));
        }
        make_log_directory(&self.data)?;
        if let Some(last) = self.current.take() {
            File::open(last.path(&self.directory))?.sync_data()?;
        }
        let mut all = segments::list(&self.directory)?;
        let segment = Segment { number: all.last().map_or(0, |last| last.number + 1), bytes };
        let file = options.create_new(true).open(segment.path(&self.directory))?;
        // The name is made durable, so that what is flushed later can be found.
        File::open(&self.directory)?.sync_all()?;
        all.push(segment);
        for old in superfluous(&all) {
            fs::remove_file(old.path(&self.directory))?;
        }
        self.current = Some(segment);
        Ok((file, true))
    }
}

#[cfg(test)]
mod tests;
