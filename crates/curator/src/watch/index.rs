//! What is known of all nodes, and in which order it came to be: pure, without etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_identity::NodeId;
use polis_proto::curator_state::NodeEnrolment;
use polis_unlock::Epoch;
use tokio::sync::watch;

use super::{NodeView, RecordChange};
use crate::membership::{RemovalProgress, Unfinished, UnfinishedRemoval};
use crate::{NodeRecord, Versioned};

/// What is known of all nodes.
///
/// Each change of a record gets the next number, and each node is remembered with the number of its last change only. So what
/// has changed since any number is found without a log, and there is as much of it as there are nodes, however far behind a
/// reader is.
#[derive(Default)]
pub(super) struct Index {
    entries: BTreeMap<NodeId, Entry>,
    /// From the number of its last change to the node.
    changes: BTreeMap<u64, NodeId>,
    latest: u64,
    /// Removals that are not finished.
    unfinished: BTreeMap<NodeId, Unfinished>,
}

#[derive(Default)]
struct Entry {
    view: NodeView,
    /// Number of the last change of its record; 0 when there was none.
    changed: u64,
    /// Present while somebody subscribes to this node.
    subscribers: Option<watch::Sender<NodeView>>,
}

impl Index {
    /// Number of the last change; 0 before the first.
    pub(super) const fn latest(&self) -> u64 {
        self.latest
    }

    pub(super) fn view(&self, id: &NodeId) -> NodeView {
        self.entries.get(id).map(|entry| entry.view.clone()).unwrap_or_default()
    }

    /// All records that are there, ordered by node.
    pub(super) fn records(&self) -> impl Iterator<Item = &Versioned<Arc<NodeRecord>>> {
        self.entries.values().filter_map(|entry| entry.view.record.as_ref())
    }

    /// The epoch of the split that each node has reported, ordered by node.
    pub(super) fn floors(&self) -> Vec<(NodeId, Epoch)> {
        let floor = |(id, entry): (&NodeId, &Entry)| {
            let epoch = entry.view.enrolment.as_ref()?.value.split.as_ref()?.epoch?;
            Some((*id, Epoch::from(epoch)))
        };
        self.entries.iter().filter_map(floor).collect()
    }

    /// Removals of which somebody has yet to hear, ordered by node.
    pub(super) fn unfinished(&self) -> Vec<UnfinishedRemoval> {
        // Nearly always, and this is asked after every change.
        if self.unfinished.is_empty() {
            return Vec::new();
        }
        let holds = |(id, entry): (&NodeId, &Entry)| {
            Some((*id, Epoch::from(entry.view.enrolment.as_ref()?.value.members_epoch?)))
        };
        let holds: BTreeMap<NodeId, Epoch> = self.entries.iter().filter_map(holds).collect();
        let is_node = |id: &NodeId| self.entries.get(id).is_some_and(|entry| entry.view.record.is_some());
        let waits = |removal: &&Unfinished| match removal.progress(&holds, is_node) {
            RemovalProgress::Waits { .. } => true,
            RemovalProgress::Over | RemovalProgress::Endless { .. } => false,
        };
        self.unfinished.values().filter(waits).map(|removal| UnfinishedRemoval::of(removal, &holds)).collect()
    }

    pub(super) fn set_unfinished(&mut self, id: NodeId, unfinished: Option<Unfinished>) {
        match unfinished {
            Some(unfinished) => self.unfinished.insert(id, unfinished),
            None => self.unfinished.remove(&id),
        };
    }

    /// The nodes whose removals are not finished.
    pub(super) fn removed(&self) -> Vec<NodeId> {
        self.unfinished.keys().copied().collect()
    }

    /// All tombstones, ordered by node.
    pub(super) fn tombstones(&self) -> impl Iterator<Item = (&NodeId, &Arc<[u8]>)> {
        self.entries.iter().filter_map(|(id, entry)| Some((id, entry.view.tombstone.as_ref()?)))
    }

    pub(super) fn set_record(&mut self, id: NodeId, record: Option<Versioned<Arc<NodeRecord>>>) {
        let entry = self.entries.entry(id).or_default();
        let revision = |record: &Option<Versioned<Arc<NodeRecord>>>| record.as_ref().map(|record| record.revision);
        if revision(&entry.view.record) != revision(&record) {
            entry.view.record = record;
            self.changes.remove(&entry.changed);
            self.latest += 1;
            entry.changed = self.latest;
            self.changes.insert(self.latest, id);
            entry.tell();
        }
        self.forget_blank(&id);
    }

    pub(super) fn set_enrolment(&mut self, id: NodeId, enrolment: Option<Versioned<Arc<NodeEnrolment>>>) {
        let entry = self.entries.entry(id).or_default();
        if entry.view.enrolment != enrolment {
            entry.view.enrolment = enrolment;
            entry.tell();
        }
        self.forget_blank(&id);
    }

    /// Returns whether that is news.
    pub(super) fn set_tombstone(&mut self, id: NodeId, tombstone: Option<Arc<[u8]>>) -> bool {
        let entry = self.entries.entry(id).or_default();
        let is_new = entry.view.tombstone != tombstone;
        if is_new {
            entry.view.tombstone = tombstone;
            entry.tell();
        }
        self.forget_blank(&id);
        is_new
    }

    /// How many nodes are remembered, for whatever reason.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.entries.len()
    }

    /// All nodes of which anything is known.
    pub(super) fn known(&self) -> Vec<NodeId> {
        self.entries.iter().filter(|(_, entry)| entry.view != NodeView::default()).map(|(id, _)| *id).collect()
    }

    /// What has changed after the change with the number `after`, the oldest first, at most `limit` of it, and the number to
    /// go on from. Nodes that were deleted up to the change `known_gone` are left out: the reader never saw them.
    pub(super) fn changes(&self, after: u64, known_gone: u64, limit: usize) -> (Vec<RecordChange>, u64) {
        let (mut found, mut last) = (Vec::new(), after);
        for (number, id) in self.changes.range(after + 1..) {
            if found.len() == limit {
                return (found, last);
            }
            last = *number;
            match self.entries.get(id).and_then(|entry| entry.view.record.as_ref()) {
                Some(record) => found.push(RecordChange::Present(record.clone())),
                None if *number <= known_gone => {}
                None => found.push(RecordChange::Deleted(*id)),
            }
        }
        (found, self.latest.max(after))
    }

    pub(super) fn subscribe(&mut self, id: NodeId) -> watch::Receiver<NodeView> {
        let entry = self.entries.entry(id).or_default();
        let view = &entry.view;
        entry.subscribers.get_or_insert_with(|| watch::Sender::new(view.clone())).subscribe()
    }

    /// Says that a subscriber is about to go: without others nothing is kept for it.
    pub(super) fn unsubscribe(&mut self, id: &NodeId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.subscribers.take_if(|sender| sender.receiver_count() <= 1);
        }
        self.forget_blank(id);
    }

    /// Drops the entry of a node of which nothing is known and that nobody asks for.
    fn forget_blank(&mut self, id: &NodeId) {
        let is_blank =
            |entry: &Entry| entry.changed == 0 && entry.subscribers.is_none() && entry.view == NodeView::default();
        if self.entries.get(id).is_some_and(is_blank) {
            self.entries.remove(id);
        }
    }
}

impl Entry {
    fn tell(&self) {
        if let Some(subscribers) = &self.subscribers {
            subscribers.send_replace(self.view.clone());
        }
    }
}
