//! Who is a member of the cluster's consensus, and how that changes.
//!
//! [`Members`] is what a node needs for it: while the node leads, [`Members::lead`] does what is to be done, one change at a
//! time. Services only write down what is wanted: a join waits in the queue ([`Members::enqueue_join`]), a removal is an intent
//! ([`Members::request_removal`]), of which the end can be waited for ([`Members::removed`]). [`Members::status`] says how it
//! stands.
//!
//! # How a member is added
//!
//! The node waits in a queue that operators see. When its turn comes, one transaction takes it out, and writes the intent and a
//! signed list of the members before and after together. It becomes a learner of etcd, gets the role with its credentials
//! and the list of members, starts, catches up, and gets its vote from the leader. One transaction ends it. A member alone is
//! restarted with the timing for a network before that. A learner that does not start, or does not catch up, is removed again
//! and goes back to the end of the queue, so that the next one is not held up.
//!
//! # How a member is removed
//!
//! By the others, never with its help. The margin is checked with the members' answers of this moment when it is asked for,
//! and again right before the call. One transaction takes the roles, revokes the member's certificate and ends it. A leader that
//! is to be removed hands over first.
//!
//! A member that cannot read its data asks for its own replacement ([`Members::request_replacement`]): a removal, and at once a
//! place in the queue.
//!
//! # What members do about their keys
//!
//! Members that encrypt their data split the keys of them among each other (`cold-start.md`), by the signed list, and report it.
//! Before a vote is given or taken, those that can be asked must have split theirs so that every quorum opens before and after it;
//! those that do not answer, and the one that goes, are not waited for. A removal is *finished* once so many have heard of it that the
//! removed node gets its key from nobody any more ([`Nodes::unfinished`](crate::Nodes::unfinished)); nothing waits for that. What all this means after a power
//! failure is told in [`MembersStatus::cold_start`]. Nodes that do not split keys are as if there were no such thing.
//!
//! # What can be relied on
//!
//! - No change of ours costs the cluster its quorum: `margin`, the same for every step, also for repairs.
//! - Every signed list has an epoch of its own, one higher than the list before: the list of a change that is under way, and
//!   the one of its end. So of two lists it is always known which one counts.
//! - A leader may die between any two steps; the next one adopts what it finds (`plan`).
//! - Membership of etcd is the truth; records that say something else are corrected within [`RECONCILE_INTERVAL`].

mod calls;
mod cold_start;
mod erased;
mod executor;
mod margin;
mod memory;
mod observation;
mod plan;
mod removal;
mod replacement;
mod request;
#[cfg(test)]
mod simulation;
mod splits;
mod status;
mod transaction;

use std::sync::Arc;

use polis_consensus::Consensus;
use polis_identity::AuthorityCertificate;
use tokio::sync::{Notify, OnceCell, watch};

use crate::{Heartbeats, LeaderState, StateError};

pub use cold_start::{ColdStart, UnfinishedRemoval};
pub(crate) use erased::forget_erased;
pub use executor::RECONCILE_INTERVAL;
pub use margin::{MAX_MEMBERS, Margin, Operation, Refusal, Verdict};
pub(crate) use observation::read_unfinished;
pub use plan::Budgets;
pub use removal::{REMOVAL_DEADLINE, Removal, RemovalError};
pub use request::{EnqueueError, Enqueued};
pub(crate) use splits::{RemovalProgress, Unfinished};
pub use status::{Change, MembersStatus, MembersStatusError, QueuedNode};

/// The consensus members, as this node can read and change them. Clones are handles of the same.
#[derive(Clone)]
pub struct Members(Arc<Inner>);

struct Inner {
    consensus: Consensus,
    heartbeats: Heartbeats,
    budgets: Budgets,
    /// The cluster's authority, which never changes; read once.
    authority: OnceCell<AuthorityCertificate>,
    /// What the leader is doing, while that is this node.
    progress: watch::Sender<Option<memory::Progress>>,
    /// The last removal that was withdrawn, by what this leader has found.
    withdrawn: watch::Sender<Option<memory::Refused>>,
    /// The node whose turn it is to be added, while that would cost the quorum.
    held_up: watch::Sender<Option<memory::Refused>>,
    /// A node has reported something on which a change may wait.
    reported: Notify,
}

impl Members {
    /// The members of the cluster that `consensus` belongs to. `heartbeats` say which node is healthy.
    #[must_use]
    pub fn new(consensus: Consensus, heartbeats: Heartbeats) -> Self {
        Self::with_budgets(consensus, heartbeats, Budgets::default())
    }

    /// The same with other budgets.
    #[must_use]
    pub fn with_budgets(consensus: Consensus, heartbeats: Heartbeats, budgets: Budgets) -> Self {
        Self(Arc::new(Inner {
            consensus,
            heartbeats,
            budgets,
            authority: OnceCell::new(),
            progress: watch::Sender::default(),
            withdrawn: watch::Sender::default(),
            held_up: watch::Sender::default(),
            reported: Notify::new(),
        }))
    }

    /// Says that a node has reported something, so that a change that waits for it goes on at once.
    pub(crate) fn reported(&self) {
        self.0.reported.notify_one();
    }

    async fn authority(&self, state: &LeaderState) -> Result<&AuthorityCertificate, StateError> {
        self.0.authority.get_or_try_init(|| state.state().authority_certificate()).await
    }
}
