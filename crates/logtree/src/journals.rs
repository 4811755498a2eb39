//! The journals of all names: what is kept, what is evicted, who listens. Pure state; [`crate::tree`] puts the lock
//! around it.
//!
//! Every entry gets the next number of one sequence over the whole tree. A journal is a queue ordered by that number, so
//! reading several names is a merge, and the oldest entry of the tree is the smallest of the journals' fronts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use crate::queue::Queue;
use crate::reader::{Backlog, Filter};
use crate::{DistinguishedName, Entry, Limits};

/// Number of a journal. Journals are never removed, so it stays valid as long as the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JournalId(u32);

/// The top of the tree always has a journal, so that every name has an ancestor with one.
const TOP: JournalId = JournalId(0);

#[derive(Debug)]
pub(crate) struct Journals {
    limits: Limits,
    by_name: BTreeMap<DistinguishedName, JournalId>,
    journals: Vec<Journal>,
    /// Where the oldest entries are: for each journal that has entries the number of its front, or a smaller one.
    ///
    /// Only the cap over all names needs it, so it is put right only then: an item that is too small is replaced by the
    /// true front and costs its correction once, while writing below the cap never touches the heap.
    oldest: BinaryHeap<Reverse<(u64, JournalId)>>,
    next_sequence: u64,
    entries: usize,
    bytes: usize,
    subscriptions: Vec<Subscription>,
    refused_a_name: bool,
}

#[derive(Debug, Default)]
struct Journal {
    slots: VecDeque<Slot>,
    /// Whether `oldest` has an item for this journal.
    in_oldest: bool,
    listeners: Vec<Arc<Queue>>,
}

/// An entry in its journal. The size is repeated here so that eviction does not touch the memory of an old entry, which
/// is long out of the processor's caches, while the lock is held.
#[derive(Debug)]
struct Slot {
    sequence: u64,
    bytes: usize,
    entry: Arc<Entry>,
}

#[derive(Debug)]
struct Subscription {
    name: DistinguishedName,
    with_children: bool,
    queue: Arc<Queue>,
}

/// What a write leaves to do after the lock is released: evicted entries to free and readers to wake.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// A write into a full tree evicts one entry as a rule; it needs no allocation.
    first: Option<Arc<Entry>>,
    more: Vec<Arc<Entry>>,
    wakers: Vec<Waker>,
}

impl Released {
    fn keep(&mut self, entry: Arc<Entry>) {
        if self.first.is_none() { self.first = Some(entry) } else { self.more.push(entry) }
    }

    /// To be called without the lock.
    pub(crate) fn finish(self) {
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

/// How a name found its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// It has its own.
    Own(JournalId),
    /// There are too many names: the journal of its nearest ancestor that has one.
    Ancestor {
        journal: JournalId,
        /// Nobody was told yet that there are too many.
        first_time: bool,
    },
}

impl Journals {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            by_name: BTreeMap::from([(DistinguishedName::root(), TOP)]),
            journals: vec![Journal::default()],
            oldest: BinaryHeap::new(),
            next_sequence: 0,
            entries: 0,
            bytes: 0,
            subscriptions: Vec::new(),
            refused_a_name: false,
        }
    }

    /// The journal that entries of `name` go to, made now if there is none.
    pub(crate) fn resolve(&mut self, name: &DistinguishedName) -> Resolved {
        if let Some(id) = self.by_name.get(name) {
            return Resolved::Own(*id);
        }
        if self.journals.len() > self.limits.names {
            let first_time = !std::mem::replace(&mut self.refused_a_name, true);
            return Resolved::Ancestor { journal: self.nearest(name), first_time };
        }
        let id = JournalId(u32::try_from(self.journals.len()).unwrap_or(u32::MAX));
        let listeners = self.subscriptions.iter().filter(|one| one.covers(name)).map(|one| one.queue.clone()).collect();
        self.journals.push(Journal { listeners, ..Journal::default() });
        self.by_name.insert(name.clone(), id);
        Resolved::Own(id)
    }

    fn nearest(&self, name: &DistinguishedName) -> JournalId {
        std::iter::successors(name.parent(), DistinguishedName::parent)
            .find_map(|ancestor| self.by_name.get(&ancestor).copied())
            .unwrap_or(TOP)
    }

    /// Appends an entry, evicts what no longer fits, and offers the entry to those who listen.
    pub(crate) fn append(&mut self, id: JournalId, entry: Arc<Entry>, bytes: usize, released: &mut Released) {
        let journal = &mut self.journals[id.0 as usize];
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        for queue in &journal.listeners {
            released.wakers.extend(queue.push(&entry, bytes));
        }
        if journal.slots.len() >= self.limits.entries_per_name.max(1)
            && let Some(slot) = journal.slots.pop_front()
        {
            self.entries -= 1;
            self.bytes -= slot.bytes;
            released.keep(slot.entry);
        }
        journal.slots.push_back(Slot { sequence, bytes, entry });
        if !std::mem::replace(&mut journal.in_oldest, true) {
            self.oldest.push(Reverse((sequence, id)));
        }
        self.entries += 1;
        self.bytes += bytes;
        while self.bytes > self.limits.bytes && self.entries > 1 && self.evict_oldest(released) {}
    }

    /// Evicts the oldest entry of the whole tree; false when there is none.
    fn evict_oldest(&mut self, released: &mut Released) -> bool {
        while let Some(mut item) = self.oldest.peek_mut() {
            let Reverse((sequence, id)) = *item;
            let journal = &mut self.journals[id.0 as usize];
            // The item is wrong when the journal's own quota has evicted what it pointed to: put it right and look again.
            if let Some(front) = journal.slots.front()
                && front.sequence != sequence
            {
                *item = Reverse((front.sequence, id));
                continue;
            }
            if let Some(slot) = journal.slots.pop_front() {
                self.entries -= 1;
                self.bytes -= slot.bytes;
                released.keep(slot.entry);
            }
            if let Some(front) = journal.slots.front() {
                *item = Reverse((front.sequence, id));
            } else {
                journal.in_oldest = false;
                std::collections::binary_heap::PeekMut::pop(item);
            }
            return true;
        }
        false
    }

    /// The entries of `name` that pass the filter, oldest first.
    pub(crate) fn backlog(
        &self,
        name: &DistinguishedName,
        with_children: bool,
        filter: Filter,
        backlog: Backlog,
    ) -> Vec<Arc<Entry>> {
        let most = match backlog {
            Backlog::None => 0,
            Backlog::Last(most) => most,
            Backlog::All => usize::MAX,
        };
        // Merge the journals from their ends: each step takes the newest entry that is left.
        let journals: Vec<&Journal> =
            self.within(name, with_children).map(|id| &self.journals[id.0 as usize]).collect();
        let position = |journal: usize, at: usize| Some((journals[journal].slots.get(at)?.sequence, journal, at));
        let mut newest: BinaryHeap<(u64, usize, usize)> = (0..journals.len())
            .filter_map(|journal| position(journal, journals[journal].slots.len().checked_sub(1)?))
            .collect();
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some((_, journal, at)) = newest.pop()
        {
            let entry = &journals[journal].slots[at].entry;
            if filter.accepts(entry) {
                entries.push(entry.clone());
            }
            newest.extend(at.checked_sub(1).and_then(|at| position(journal, at)));
        }
        entries.reverse();
        entries
    }

    fn within(&self, name: &DistinguishedName, with_children: bool) -> impl Iterator<Item = JournalId> {
        // Names are ordered so that everything below a name follows it directly.
        self.by_name
            .range(name..)
            .take_while(move |(other, _)| other.is_within(name))
            .filter(move |(other, _)| with_children || *other == name)
            .map(|(_, id)| *id)
    }

    /// Registers a queue for everything that is appended from now on. False when there are as many as there may be.
    pub(crate) fn subscribe(&mut self, name: &DistinguishedName, with_children: bool, queue: Arc<Queue>) -> bool {
        if self.subscriptions.len() >= self.limits.readers {
            return false;
        }
        let journals: Vec<JournalId> = self.within(name, with_children).collect();
        for id in journals {
            self.journals[id.0 as usize].listeners.push(queue.clone());
        }
        self.subscriptions.push(Subscription { name: name.clone(), with_children, queue });
        true
    }

    /// Forgets a queue. Its reader still holds it, so what it buffers is freed there and not under the lock.
    pub(crate) fn unsubscribe(&mut self, queue: &Arc<Queue>) {
        let Some(at) = self.subscriptions.iter().position(|one| Arc::ptr_eq(&one.queue, queue)) else { return };
        let Subscription { name, with_children, .. } = self.subscriptions.swap_remove(at);
        let journals: Vec<JournalId> = self.within(&name, with_children).collect();
        for id in journals {
            self.journals[id.0 as usize].listeners.retain(|other| !Arc::ptr_eq(other, queue));
        }
    }

    /// Tells all queues that nothing will come any more; returns the wakers of those who wait.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.subscriptions.drain(..).filter_map(|one| one.queue.close()).collect()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Names with a journal of their own; the top of the tree counts once something was written there.
    pub(crate) fn names(&self) -> impl Iterator<Item = &DistinguishedName> {
        self.by_name
            .iter()
            .filter(|(name, id)| !name.as_str().is_empty() || self.has_entries(**id))
            .map(|(name, _)| name)
    }

    fn has_entries(&self, id: JournalId) -> bool {
        !self.journals[id.0 as usize].slots.is_empty()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn readers(&self) -> usize {
        self.subscriptions.len()
    }
}

impl Subscription {
    fn covers(&self, name: &DistinguishedName) -> bool {
        if self.with_children { name.is_within(&self.name) } else { *name == self.name }
    }
}
