//! The tree: the journals behind one lock that is only ever held briefly.
//!
//! Writers make an entry before they take the lock and free evicted ones after they have released it; readers are woken
//! after it too. Under it an entry is linked into its journal and offered to the queues that listen, nothing else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

use crate::journals::{JournalId, Journals, Released, Resolved};
use crate::layer::TreeLayer;
use crate::queue::Queue;
use crate::reader::Filter;
use crate::{
    DistinguishedName, Entry, Leveled, Limits, Location, Logger, Payload, RawWriter, ReadError, ReadOptions, Reader,
    Severity,
};

/// The log of a node. Clones share the same tree.
#[derive(Clone, Debug, Default)]
pub struct LogTree(Arc<Shared>);

/// How much a tree holds at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Names that something was written under.
    pub names: usize,
    /// Entries of all names.
    pub entries: usize,
    /// Memory of those entries in bytes, as it counts against [`Limits::bytes`].
    pub bytes: usize,
    /// Readers that follow the tree.
    pub readers: usize,
}

impl LogTree {
    /// An empty tree.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared { journals: Mutex::new(Journals::new(limits)) }))
    }

    /// A logger for leveled entries under `name`.
    pub fn logger(&self, name: &DistinguishedName) -> Logger {
        Logger::new(self.0.clone(), name.clone())
    }

    /// A writer for raw lines under `name`.
    pub fn raw(&self, name: &DistinguishedName) -> RawWriter {
        RawWriter::raw(self.logger(name))
    }

    /// A writer for the lines that etcd prints with `--logger=zap`, see [`crate::parse::etcd()`].
    pub fn etcd(&self, name: &DistinguishedName) -> RawWriter {
        RawWriter::etcd(self.logger(name))
    }

    /// Reads the entries of `name`, and follows it if asked to. The backlog ends and the stream begins at the same place
    /// of the sequence: no entry is in both or in neither.
    pub fn read(&self, name: &DistinguishedName, options: ReadOptions) -> Result<Reader, ReadError> {
        let filter = Filter::new(&options)?;
        let mut journals = self.0.lock();
        let queue = options.stream.then(|| Arc::new(Queue::new(filter, journals.limits())));
        if let Some(queue) = &queue
            && !journals.subscribe(name, options.with_children, queue.clone())
        {
            return Err(ReadError::TooManyReaders(journals.limits().readers));
        }
        let backlog = journals.backlog(name, options.with_children, filter, options.backlog);
        drop(journals);
        Ok(Reader::new(backlog, queue.map(|queue| (queue, Arc::downgrade(&self.0)))))
    }

    /// A layer for a `tracing` subscriber that writes events up to INFO into this tree, each under the name of the
    /// innermost [`crate::runnable_span`] around it, or under [`crate::PROCESS_NAME`]. A subscriber takes the layer of
    /// one tree only.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    {
        self.layer_up_to(LevelFilter::INFO)
    }

    /// As [`LogTree::layer`], for events up to `maximum`. Events above it cost nothing: `tracing` remembers at each
    /// place in the code that nobody wants them.
    pub fn layer_up_to<S>(&self, maximum: LevelFilter) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    {
        TreeLayer::new(self.clone()).with_filter(maximum)
    }

    /// All names that something was written under, each followed by those below it.
    pub fn names(&self) -> Vec<DistinguishedName> {
        self.0.lock().names().cloned().collect()
    }

    /// How much the tree holds.
    pub fn usage(&self) -> Usage {
        let journals = self.0.lock();
        Usage {
            names: journals.names().count(),
            entries: journals.entries(),
            bytes: journals.bytes(),
            readers: journals.readers(),
        }
    }
}

/// What the clones of a tree, its loggers and its writers share. Readers hold it weakly.
#[derive(Debug)]
pub(crate) struct Shared {
    journals: Mutex<Journals>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { journals: Mutex::new(Journals::new(Limits::default())) }
    }
}

impl Shared {
    /// The journal for `name`. Says once in the tree's life that there are too many names.
    pub(crate) fn resolve(&self, name: &DistinguishedName) -> JournalId {
        let mut journals = self.lock();
        match journals.resolve(name) {
            Resolved::Own(journal) => journal,
            Resolved::Ancestor { journal, first_time } => {
                if first_time {
                    let text = format!(
                        "the log has reached its {} names: entries of {name} and of further new names are kept in the \
                         journal of the nearest name above that has one, and share its quota; read it to find them",
                        journals.limits().names
                    );
                    let payload = Payload::Leveled(Leveled::new(
                        Severity::Warning,
                        Location::from(std::panic::Location::caller()),
                        &text,
                    ));
                    let entry = Entry { name: name.clone(), timestamp: Timestamp::now(), payload };
                    let (bytes, mut released) = (entry.memory_bytes(), Released::default());
                    journals.append(journal, Arc::new(entry), bytes, &mut released);
                    drop(journals);
                    released.finish();
                }
                journal
            }
        }
    }

    /// Appends one entry.
    pub(crate) fn append(&self, journal: JournalId, entry: Entry) {
        let bytes = entry.memory_bytes();
        let entry = Arc::new(entry);
        let mut released = Released::default();
        self.lock().append(journal, entry, bytes, &mut released);
        released.finish();
    }

    /// Appends several entries that arrived together.
    pub(crate) fn append_all(&self, journal: JournalId, entries: &mut Vec<(Arc<Entry>, usize)>) {
        let mut released = Released::default();
        let mut journals = self.lock();
        for (entry, bytes) in entries.drain(..) {
            journals.append(journal, entry, bytes, &mut released);
        }
        drop(journals);
        released.finish();
    }

    pub(crate) fn unsubscribe(&self, queue: &Arc<Queue>) {
        self.lock().unsubscribe(queue);
    }

    /// Nothing that can panic runs under this lock, so poisoning says nothing about the state.
    fn lock(&self) -> MutexGuard<'_, Journals> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let journals = self.journals.get_mut().unwrap_or_else(PoisonError::into_inner);
        journals.close().into_iter().for_each(std::task::Waker::wake);
    }
}
