//! The stream of a Logs call: first what is there, in messages of bounded size, then what comes.
//!
//! A slow reader costs the node no more than the bounded queue that the log tree keeps for it; what is dropped there is said in
//! the stream. Nothing of a call runs while its client takes nothing, and a client that ends the call ends the stream with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::vec;

use futures::Stream;
use polis_logtree::{Entry, Item, LogTree, ReadError, Reader};
use polis_proto::api::{LogsRequest, LogsResponse};
use prost::Message as _;
use tonic::Status;

use super::log_entry::{missing, on_wire};
use super::logs_request::Wanted;
use super::places::{Place, Places};

/// Most entries in one message of the backlog (metropolis.md J.2).
const CHUNK_ENTRIES: usize = 2000;

/// Most bytes of entries in one message, unless one entry alone is longer: a quarter of what clients of gRPC take by default.
const CHUNK_BYTES: usize = 1 << 20;

/// Calls that are answered at a time. People and tools that look at one node are fewer; each may hold as much of the log as the
/// whole tree keeps.
const MAX_CALLS: usize = 16;

/// How long a client may leave lie what is ready for it before somebody else may have its place. A connection that is merely
/// slow takes something within a second.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Serves the log of this node. Clones are the same.
#[derive(Clone)]
pub(super) struct Logs {
    tree: LogTree,
    places: Places<Source>,
}

/// What a call reads from.
struct Source {
    backlog: vec::IntoIter<Arc<Entry>>,
    /// An entry that did not fit into the last message.
    held_back: Option<Arc<Entry>>,
    reader: Reader,
    streams: bool,
    name: String,
    only_raw: bool,
}

/// The answer to one call.
pub(super) struct LogStream {
    place: Arc<Place<Source>>,
    ended: bool,
}

impl Logs {
    pub(super) fn new(tree: LogTree) -> Self {
        Self { tree, places: Places::new(MAX_CALLS, STALLED_AFTER) }
    }

    /// Begins to answer a call.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for what cannot be asked for, RESOURCE_EXHAUSTED when too many read already.
    pub(super) fn read(&self, request: LogsRequest) -> Result<LogStream, Status> {
        let Wanted { name, options } =
            Wanted::try_from(request).map_err(|invalid| Status::invalid_argument(invalid.to_string()))?;
        let make = || {
            let mut reader = self.tree.read(&name, options).map_err(|error| match error {
                ReadError::RawAndLeveled | ReadError::RawAndSeverity => Status::invalid_argument(error.to_string()),
                ReadError::TooManyReaders(_) => Status::resource_exhausted(error.to_string()),
            })?;
            Ok::<_, Status>(Source {
                backlog: std::mem::take(&mut reader.backlog).into_iter(),
                held_back: None,
                reader,
                streams: options.stream,
                name: name.to_string(),
                only_raw: options.only_raw,
            })
        };
        match self.places.take(Instant::now(), make)? {
            Some(place) => Ok(LogStream { place, ended: false }),
            None => Err(Status::resource_exhausted(format!(
                "{MAX_CALLS} calls read the log of this node already, which is the most it answers; end one and try again"
            ))),
        }
    }
}

impl Source {
    /// The next message of the backlog; none when all of it was sent.
    fn backlog_chunk(&mut self) -> Option<LogsResponse> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < CHUNK_ENTRIES {
            let Some(entry) = self.held_back.take().or_else(|| self.backlog.next()) else { break };
            let wire = on_wire(&entry);
            bytes += wire.encoded_len();
            if bytes > CHUNK_BYTES && !entries.is_empty() {
                self.held_back = Some(entry);
                break;
            }
            entries.push(wire);
        }
        (!entries.is_empty()).then(|| LogsResponse { backlog_entries: entries, stream_entries: Vec::new() })
    }

    /// The next message of the stream: all that has come since the last, up to the bound.
    fn poll_stream(&mut self, context: &mut Context<'_>) -> Poll<Option<LogsResponse>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < CHUNK_BYTES && entries.len() < CHUNK_ENTRIES {
            let entry = match self.reader.poll_next(context) {
                Poll::Ready(Some(Item::Entry(entry))) => on_wire(&entry),
                Poll::Ready(Some(Item::Missed(count))) => missing(&self.name, count, self.only_raw),
                Poll::Ready(None) if entries.is_empty() => return Poll::Ready(None),
                Poll::Pending if entries.is_empty() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            };
            bytes += entry.encoded_len();
            entries.push(entry);
        }
        Poll::Ready(Some(LogsResponse { backlog_entries: Vec::new(), stream_entries: entries }))
    }
}

impl Stream for LogStream {
    type Item = Result<LogsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut holder = self.place.lock();
        let polled = match &mut holder.inside {
            None => Poll::Ready(Some(Err(Status::resource_exhausted(format!(
                "what was sent was not taken for {} s, and another reader of the log needed the place",
                STALLED_AFTER.as_secs()
            ))))),
            Some(source) => match source.backlog_chunk() {
                Some(chunk) => Poll::Ready(Some(Ok(chunk))),
                None if !source.streams => Poll::Ready(None),
                None => source.poll_stream(context).map(|message| match message {
                    Some(message) => Some(Ok(message)),
                    None => Some(Err(Status::unavailable("the log of this node ends: the node stops"))),
                }),
            },
        };
        // Whoever is not polled again after this has what it got still to send.
        holder.ready_since = polled.is_ready().then(Instant::now);
        drop(holder);
        self.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
