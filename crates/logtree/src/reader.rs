//! Reading the tree: what is there, and what comes.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crate::queue::Queue;
use crate::tree::Shared;
use crate::{Entry, Severity};

/// Which of the existing entries to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// None of them.
    None,
    /// The newest that pass the filters, at most this many.
    Last(usize),
    /// All that are kept.
    All,
}

/// What to read of the tree (metropolis.md B.3). By default: all existing entries of one name, and no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Which existing entries to read.
    pub backlog: Backlog,
    /// Whether to go on with the entries that are written from now on.
    pub stream: bool,
    /// Whether to read the names below the given one too.
    pub with_children: bool,
    /// Leave out leveled entries.
    pub only_raw: bool,
    /// Leave out raw entries.
    pub only_leveled: bool,
    /// Leave out leveled entries below this severity, and raw entries, which have none.
    pub minimum_severity: Option<Severity>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            backlog: Backlog::All,
            stream: false,
            with_children: false,
            only_raw: false,
            only_leveled: false,
            minimum_severity: None,
        }
    }
}

/// Why the tree cannot be read as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Both kinds of entry are excluded by the other's filter.
    #[error("only raw and only leveled entries were asked for at the same time, which no entry can be; choose one")]
    RawAndLeveled,
    /// Raw entries have no severity to compare.
    #[error("only raw entries of a minimum severity were asked for, but raw entries have no severity; choose one")]
    RawAndSeverity,
    /// [`crate::Limits::readers`] readers follow the tree already.
    #[error("{0} readers follow this node's log already, which is the most it serves; close one and try again")]
    TooManyReaders(usize),
}

/// The part of the options that decides entry by entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    raw: bool,
    /// The least severity of leveled entries; `None` leaves all of them out.
    leveled: Option<Severity>,
}

impl Filter {
    pub(crate) fn new(options: &ReadOptions) -> Result<Self, ReadError> {
        match options {
            ReadOptions { only_raw: true, only_leveled: true, .. } => Err(ReadError::RawAndLeveled),
            ReadOptions { only_raw: true, minimum_severity: Some(_), .. } => Err(ReadError::RawAndSeverity),
            ReadOptions { only_raw: true, .. } => Ok(Self { raw: true, leveled: None }),
            ReadOptions { only_leveled, minimum_severity, .. } => Ok(Self {
                raw: !only_leveled && minimum_severity.is_none(),
                leveled: Some(minimum_severity.unwrap_or(Severity::Info)),
            }),
        }
    }

    pub(crate) fn accepts(self, entry: &Entry) -> bool {
        match entry.severity() {
            None => self.raw,
            Some(severity) => self.leveled.is_some_and(|minimum| severity >= minimum),
        }
    }
}

/// One step of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The next entry.
    Entry(Arc<Entry>),
    /// This many entries belong here and were dropped because the reader was too slow.
    Missed(u64),
}

/// What [`crate::LogTree::read`] returns: the existing entries, and the stream of those to come.
///
/// Dropping it ends the stream at once; nothing of it stays in the tree.
#[derive(Debug)]
pub struct Reader {
    /// The existing entries, oldest first. The stream goes on exactly after the last of them.
    pub backlog: Vec<Arc<Entry>>,
    stream: Option<Stream>,
}

/// The reader's end of its queue. It does not keep the tree alive: when nobody is left who could write, the stream ends.
#[derive(Debug)]
struct Stream {
    queue: Arc<Queue>,
    tree: Weak<Shared>,
}

impl Reader {
    pub(crate) fn new(backlog: Vec<Arc<Entry>>, stream: Option<(Arc<Queue>, Weak<Shared>)>) -> Self {
        Self { backlog, stream: stream.map(|(queue, tree)| Stream { queue, tree }) }
    }

    /// Waits for the next step of the stream. `None` when there is none: no stream was asked for, or nobody is left who
    /// could write. Cancelling the wait loses nothing.
    pub async fn next(&mut self) -> Option<Item> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Reader::next`], for callers that poll by hand.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        match &self.stream {
            Some(stream) => stream.queue.poll_pop(context),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.unsubscribe(&self.queue);
        }
    }
}
