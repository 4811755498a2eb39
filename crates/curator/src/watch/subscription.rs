//! Those who want to know of nodes.

use polis_identity::NodeId;
use tokio::sync::watch;

use super::{NodeView, Nodes, RecordChange};

/// Follows one node, whether or not it exists yet.
pub struct NodeSubscription {
    nodes: Nodes,
    id: NodeId,
    views: watch::Receiver<NodeView>,
    /// What was last told of its record.
    told: Told,
}

/// What a subscriber was last told of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// It is there, at this revision.
    Present(i64),
    Deleted,
}

impl NodeSubscription {
    pub(super) fn new(nodes: Nodes, id: NodeId, views: watch::Receiver<NodeView>) -> Self {
        Self { nodes, id, views, told: Told::Nothing }
    }

    /// What is known of the node now.
    #[must_use]
    pub fn view(&mut self) -> NodeView {
        self.views.borrow_and_update().clone()
    }

    /// Waits until anything has changed since the last call, and returns what is known then. May be cancelled at any time.
    pub async fn changed(&mut self) -> NodeView {
        match self.views.changed().await {
            Ok(()) => self.view(),
            // The sender lives for as long as this subscription.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the record is another than the one that was returned last. The first call returns at once if the node is
    /// there or was deleted, and else waits until it is there. May be cancelled at any time.
    pub async fn next_record(&mut self) -> RecordChange {
        let mut view = self.view();
        loop {
            match (view.record, self.told) {
                (Some(record), told) if told != Told::Present(record.revision) => {
                    self.told = Told::Present(record.revision);
                    return RecordChange::Present(record);
                }
                (None, Told::Present(_)) => {
                    self.told = Told::Deleted;
                    return RecordChange::Deleted(self.id);
                }
                (None, Told::Nothing) if view.tombstone.is_some() => {
                    self.told = Told::Deleted;
                    return RecordChange::Deleted(self.id);
                }
                (Some(_), _) | (None, Told::Nothing | Told::Deleted) => {}
            }
            view = self.changed().await;
        }
    }
}

impl Drop for NodeSubscription {
    fn drop(&mut self) {
        self.nodes.index().unsubscribe(&self.id);
    }
}

/// Follows all nodes.
pub struct AllNodes {
    nodes: Nodes,
    latest: watch::Receiver<u64>,
    /// Number of the last change that was returned.
    after: u64,
    /// Number of the last change at the beginning; set by the first call.
    began: Option<u64>,
    /// Whether the reader was told that more follows, so that it gets an answer at once even if there is none.
    owes: bool,
}

/// Changes of records.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// Each node at most once, in the order of their last changes.
    pub changes: Vec<RecordChange>,
    /// Whether that is all there is. The first batches are the nodes that are there already, up to the first one that is
    /// complete.
    pub is_complete: bool,
}

impl AllNodes {
    pub(super) fn new(nodes: Nodes, latest: watch::Receiver<u64>) -> Self {
        Self { nodes, latest, after: 0, began: None, owes: true }
    }

    /// The next changes, at most `limit`. The first call returns once the nodes are known, with an empty batch if there are
    /// none; later ones wait until there is a change, unless the last batch was not complete. May be cancelled at any time.
    ///
    /// # Panics
    ///
    /// When `limit` is zero.
    pub async fn next(&mut self, limit: usize) -> Changes {
        assert!(limit > 0, "a batch has room for at least one change");
        self.nodes.listed().await;
        loop {
            let latest = *self.latest.borrow_and_update();
            let known_gone = *self.began.get_or_insert(latest);
            let (changes, after) = self.nodes.index().changes(self.after, known_gone, limit);
            let has_more = after < latest;
            self.after = after;
            if self.owes || has_more || !changes.is_empty() {
                self.owes = has_more;
                return Changes { changes, is_complete: !has_more };
            }
            if self.latest.changed().await.is_err() {
                // The sender is in the nodes, which this holds.
                std::future::pending::<()>().await;
            }
        }
    }
}
