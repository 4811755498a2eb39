//! The buffer between the tree and one reader that follows it.
//!
//! Writers push under the lock of the tree, the reader pops under the lock of its queue only. The queue is bounded: when
//! it is full, entries are counted instead of kept, until the reader has taken half of what is there. The count is
//! attached to the next entry that is kept, which is exactly where the missing ones would have been.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::reader::{Filter, Item};
use crate::{Entry, Limits};

/// The buffer of one reader.
#[derive(Debug)]
pub(crate) struct Queue {
    filter: Filter,
    capacity: usize,
    capacity_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Entries that were dropped since the last one that was kept.
    missed: u64,
    /// The queue was full, and the reader has not yet taken half of it. Without this a reader that is always a little
    /// behind would get single entries with a gap around each.
    overflowing: bool,
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Kept {
    missed_before: u64,
    bytes: usize,
    entry: Arc<Entry>,
}

impl Queue {
    pub(crate) fn new(filter: Filter, limits: &Limits) -> Self {
        let (capacity, capacity_bytes) = (limits.reader_entries.max(1), limits.reader_bytes);
        Self { filter, capacity, capacity_bytes, state: Mutex::default() }
    }

    /// Offers an entry. Returns the reader's waker when the reader sleeps; the caller calls it once it has let go of its
    /// own lock. A reader that was woken and has not come back yet costs nothing.
    pub(crate) fn push(&self, entry: &Arc<Entry>, bytes: usize) -> Option<Waker> {
        if !self.filter.accepts(entry) {
            return None;
        }
        let mut state = self.lock();
        let full = state.kept.len() >= self.capacity || state.kept_bytes + bytes > self.capacity_bytes;
        if !state.kept.is_empty() && (state.overflowing || full) {
            state.overflowing = true;
            state.missed += 1;
            return None;
        }
        let missed_before = std::mem::take(&mut state.missed);
        state.overflowing = false;
        state.kept_bytes += bytes;
        state.kept.push_back(Kept { missed_before, bytes, entry: entry.clone() });
        state.waker.take()
    }

    /// Takes the next item; `None` when nothing is left and nothing will come.
    pub(crate) fn poll_pop(&self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut state = self.lock();
        if let Some(front) = state.kept.front_mut() {
            let missed = std::mem::take(&mut front.missed_before);
            if missed > 0 {
                return Poll::Ready(Some(Item::Missed(missed)));
            }
        }
        if let Some(Kept { bytes, entry, .. }) = state.kept.pop_front() {
            state.kept_bytes -= bytes;
            if state.kept.len() <= self.capacity / 2 && state.kept_bytes <= self.capacity_bytes / 2 {
                state.overflowing = false;
            }
            return Poll::Ready(Some(Item::Entry(entry)));
        }
        if state.missed > 0 {
            return Poll::Ready(Some(Item::Missed(std::mem::take(&mut state.missed))));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Says that nothing more will be pushed.
    pub(crate) fn close(&self) -> Option<Waker> {
        let mut state = self.lock();
        state.closed = true;
        state.waker.take()
    }

    /// Nothing that can panic runs under this lock, so poisoning says nothing about the state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
