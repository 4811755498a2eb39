//! Watches that survive restarts of etcd.

use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{CALL_DEADLINE, Connection};
use super::key::{KeyValue, Prefix};

/// First pause before a watch that ended is opened again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Longest pause; it doubles up to here while etcd cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A watch over a range of keys. It resumes by itself after the last revision that it returned whenever its stream ends,
/// so that its user sees every change once and in order; dropping it ends it.
pub struct Watch {
    connection: Connection,
    prefix: Prefix,
    range: (Vec<u8>, Vec<u8>),
    /// First revision that was not returned yet.
    next: i64,
    stream: Option<WatchStream>,
    pause: Duration,
    /// When the stream may be opened again.
    open_at: Option<Instant>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted.
    Delete {
        /// The key, without the client's prefix.
        key: Vec<u8>,
        /// Revision of the deletion.
        revision: i64,
    },
}

impl Change {
    /// The key that changed, without the client's prefix.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(pair) => &pair.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// Revision of the store at which it changed.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        match self {
            Self::Put(pair) => pair.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// Changes that were made while the watch was away have been compacted: list again, and watch from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes before revision {oldest} are no longer kept; the keys must be listed again")]
pub struct Compacted {
    /// The oldest revision that a watch can start from.
    pub oldest: i64,
}

impl Watch {
    pub(super) const fn new(connection: Connection, prefix: Prefix, range: (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        let next = revision + 1;
        Self { connection, prefix, range, next, stream: None, pause: FIRST_PAUSE, open_at: None }
    }

    /// The next changes: at least one; all those of a revision come together. Waits for as long as there is none, also
    /// while etcd is away or has no leader. May be cancelled at any time without losing anything.
    ///
    /// # Errors
    ///
    /// When the changes that come next no longer exist.
    pub async fn next(&mut self) -> Result<Vec<Change>, Compacted> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.open().await;
                continue;
            };
            let Ok(Some(response)) = stream.message().await else {
                self.close();
                continue;
            };
            let response = response.0;
            if response.compact_revision > 0 {
                self.close();
                return Err(Compacted { oldest: response.compact_revision });
            }
            if response.canceled {
                self.close();
                continue;
            }
            self.pause = FIRST_PAUSE;
            let changes: Vec<Change> = response.events.into_iter().filter_map(|event| self.change(event)).collect();
            if let Some(last) = changes.last() {
                self.next = last.revision() + 1;
                return Ok(changes);
            }
        }
    }

    fn change(&self, event: etcd_client::proto::PbEvent) -> Option<Change> {
        let deleted = event.r#type == EventType::Delete as i32;
        let pair = self.prefix.strip(etcd_client::KeyValue(event.kv?));
        // What was already returned cannot come again from a stream that starts after it; this only guards the promise.
        if pair.mod_revision < self.next {
            return None;
        }
        Some(if deleted { Change::Delete { key: pair.key, revision: pair.mod_revision } } else { Change::Put(pair) })
    }

    async fn open(&mut self) {
        if let Some(open_at) = self.open_at {
            sleep_until(open_at).await;
        }
        let options = WatchOptions::new().with_range(self.range.1.clone()).with_start_revision(self.next);
        let mut watches = self.connection.watches();
        match timeout(CALL_DEADLINE, watches.watch(self.range.0.clone(), Some(options))).await {
            Ok(Ok(stream)) => self.stream = Some(stream),
            Ok(Err(_)) | Err(_) => self.close(),
        }
    }

    /// Forgets the stream, and waits a little before the next.
    fn close(&mut self) {
        self.stream = None;
        self.open_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
