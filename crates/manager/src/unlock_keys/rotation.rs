//! Replacing the cluster's half of the key, in steps that can each be repeated.

use std::sync::Arc;

use polis_curator::services::unlock_key_hash;
use polis_fault::point;
use polis_secret::Secret32;
use polis_storage::DataPartition;
use polis_storage::data::{DataError, UnlockKeys};
use polis_storage::journal::ClusterUnlockKey;
use polis_supervisor::Context;

use crate::cluster_access::CallFailure;
use crate::consensus::ConsensusProvider;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::Ended;

/// Why the key was not replaced to the end. It is gone on with later.
#[derive(Debug, thiserror::Error)]
pub(super) enum RotationError {
    /// The data partition.
    #[error("the data partition does not take the change")]
    Data(#[from] DataError),
    /// The cluster.
    #[error("the cluster does not take the new key")]
    Cluster(#[from] CallFailure),
    /// The slot that was made is not one.
    #[error("the new key does not open the data partition, although a slot was made for it; the old one stays")]
    DoesNotOpen,
    /// The cluster keeps another key.
    #[error("the cluster still keeps another key than the new one; the old one stays")]
    NotKept,
    /// The journal.
    #[error("the enrolment journal does not take the change")]
    Journal(#[source] Failure),
    /// The node is being stopped.
    #[error("the node is stopping")]
    Stopping,
}

impl From<Ended> for RotationError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Cancelled => Self::Stopping,
            Ended::Failed(failure) => Self::Journal(failure),
        }
    }
}

/// A change of the key: from one to the next.
pub(super) struct Change {
    pub(super) partition: Arc<dyn DataPartition>,
    /// The present keys.
    pub(super) old: UnlockKeys,
    /// The next ones.
    pub(super) new: UnlockKeys,
    /// Whether the journal holds the new one then.
    pub(super) keep: bool,
}

impl<C: ConsensusProvider> Inner<C> {
    /// Begins to replace the key: from here on a start goes on with it. Returns the next one.
    pub(super) async fn begin_rotation(&self, context: &Context, current: Secret32) -> Result<Secret32, RotationError> {
        let pending = Secret32::random();
        let both = ClusterUnlockKey { current, pending: Some(pending.clone()) };
        self.change_journal(context, "journal/rekey/begin", false, move |journal| {
            journal.cluster_unlock_key = Some(both.clone());
        })
        .await?;
        Ok(pending)
    }

    /// Replaces the key, from whatever step an earlier life has come to.
    pub(super) async fn finish_rotation(&self, context: &Context, change: Change) -> Result<(), RotationError> {
        let Change { partition, old, new, keep } = change;
        if !partition.test_open(&new).await? {
            point("rekey/slot", "before");
            partition.add_key(&old, &new).await?;
            point("rekey/slot", "after");
        }
        point("rekey/cluster", "before");
        self.settings.access.store_unlock_key(&new.cluster).await?;
        point("rekey/cluster", "after");
        if !partition.test_open(&new).await? {
            return Err(RotationError::DoesNotOpen);
        }
        let kept = self.settings.access.check_unlock_key().await?;
        if kept.hash != Some(unlock_key_hash(&new.cluster)) {
            return Err(RotationError::NotKept);
        }
        if partition.test_open(&old).await? {
            point("rekey/old-slot", "before");
            partition.remove_key(&old, &new).await?;
            point("rekey/old-slot", "after");
        }
        let cluster = new.cluster;
        self.opened.send_modify(|opened| {
            if let Some(keys) = opened.as_mut().and_then(|opened| opened.keys.as_mut()) {
                keys.cluster = cluster.clone();
            }
        });
        self.change_journal(context, "journal/rekey/done", true, move |journal| {
            let kept = ClusterUnlockKey { current: cluster.clone(), pending: None };
            journal.cluster_unlock_key = keep.then_some(kept);
        })
        .await?;
        tracing::info!(kept_here = keep, "the cluster unlock key of this node was replaced");
        Ok(())
    }
}
