//! The runnable that keeps what opens the node for whoever has the recovery key.

use std::sync::{Arc, PoisonError};

use polis_condition::Severity;
use polis_recovery::{Blob, BlobContent, BlobSubject, RecoveryPublicKey, SealBlobError};
use polis_secret::Secret32;
use polis_storage::journal::ClusterUnlockKey;
use polis_storage::{Journal, JournalError, Loaded, RecoveryBlob, TwoGenerationsError};
use polis_supervisor::{Context, RunnableResult, SharedRunnable, runnable, with_causes};
use tokio::time::{Instant, sleep_until};

use super::{Kept, KeptBlob, subject};
use crate::cluster_access::{CallFailure, News};
use crate::consensus::ConsensusProvider;
use crate::manager::{Inner, Manager};
use crate::pace::{Pace, Pauses};

/// Name of the condition that the recovery key of the cluster would not open this node as it is now.
const BLOB_NOT_KEPT: &str = "recovery-blob-not-kept";

/// Why the recovery key would not open the node as it is now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobError {
    /// There is a blob, and the cluster has not said to which key it is to be sealed.
    #[error(
        "this node has a recovery blob, and its cluster has told no recovery key yet; if it has none any more, set it again: polis \
         cluster recovery-key set FILE"
    )]
    KeyUnknown,
    /// What the cluster has for a recovery key is none.
    #[error("what the cluster has as its recovery key is none that a person could have the words of")]
    Key,
    /// The journal.
    #[error("the enrolment journal cannot be read")]
    Journal(#[source] JournalError),
    /// The record does not fit.
    #[error("no recovery blob can be made")]
    Seal(#[from] SealBlobError),
    /// The ESP.
    #[error("the recovery blob cannot be kept on the ESP")]
    Store(#[from] TwoGenerationsError),
    /// The cluster.
    #[error("the cluster does not take the recovery blob")]
    Cluster(#[from] CallFailure),
    /// The membership has ended.
    #[error("this node is no member of a cluster any more")]
    Ended,
}

/// Digest of the blob that was given to the cluster.
type Sent = [u8; 32];

impl<C: ConsensusProvider> Manager<C> {
    /// The runnable that keeps what opens the node for whoever has the recovery key. It knows what to offer once it is healthy.
    #[must_use]
    pub fn blob_keeper(&self) -> SharedRunnable {
        let manager = self.clone();
        runnable(move |context| {
            let manager = manager.clone();
            async move { manager.inner().keep_blob(context).await }
        })
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable.
    async fn keep_blob(&self, context: Context) -> RunnableResult {
        self.load_blob(&context).await;
        context.healthy();
        let mut key = self.settings.access.recovery_key();
        let (mut opened, mut written) = (self.opened.subscribe(), self.journal.written());
        let (mut seen, mut sent) = (News::default(), None);
        let mut pauses = Pauses::default();
        loop {
            // All are marked as seen before they are read, so that nothing that comes in between is missed.
            key.mark_unchanged();
            opened.mark_unchanged();
            written.mark_unchanged();
            let kept = context.unless_cancelled(self.keep_and_send(&context, seen.in_contact, &mut sent)).await?;
            let again_at = match kept {
                Ok(()) => {
                    context.conditions().clear(BLOB_NOT_KEPT);
                    pauses = Pauses::default();
                    None
                }
                Err(error) => {
                    context.conditions().raise(
                        BLOB_NOT_KEPT,
                        Severity::Warning,
                        format!("the recovery key would not open this node as it is now: {}", with_causes(&error)),
                        "nothing is wrong with the node itself, and it is tried again by itself; see to what the message names",
                    );
                    Some(Instant::now() + pauses.next(Pace::Refused, rand::random()))
                }
            };
            tokio::select! {
                cancelled = context.cancelled() => return Err(cancelled.into()),
                Ok(()) = key.changed() => {}
                Ok(()) = opened.changed() => {}
                Ok(()) = written.changed() => {}
                news = self.settings.access.news(&seen) => {
                    // Another leader may have another state, and one that has it already writes nothing.
                    sent = None;
                    seen = news;
                }
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {}
            }
        }
    }

    /// Sees to it that the blob with `key` in it is on the ESP before any other key of the data stops opening them. Does nothing where
    /// the cluster has no recovery key, or none that is known.
    pub(crate) async fn keep_recoverable(&self, context: &Context, key: &Secret32) -> Result<(), BlobError> {
        *self.recovery.required.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
        let renewed = self.renew_blob(context).await?;
        let has_blob = matches!(&*self.recovery.kept.borrow(), Kept::Blob(_) | Kept::NotRead);
        if renewed.is_none() && has_blob { Err(BlobError::KeyUnknown) } else { Ok(()) }
    }

    async fn keep_and_send(
        &self,
        context: &Context,
        in_contact: bool,
        sent: &mut Option<Sent>,
    ) -> Result<(), BlobError> {
        let Some((key, kept)) = self.renew_blob(context).await? else { return Ok(()) };
        let now = kept.blob.digest();
        if !in_contact || *sent == Some(now) {
            return Ok(());
        }
        self.settings.access.store_recovery_blob(&key, &kept.blob.to_bytes()).await?;
        *sent = Some(now);
        Ok(())
    }

    /// Looks for the blob on the ESP.
    async fn load_blob(&self, context: &Context) {
        let _writing = self.recovery.writing.lock().await;
        let file = self.layout.esp.polis.recovery.clone();
        let kept = match context.blocking(move || file.load()).await {
            Ok(None) => Kept::None,
            Ok(Some(Loaded { value: RecoveryBlob { blob, content_hash }, fault, .. })) => {
                if let Some(fault) = fault {
                    tracing::warn!(%fault, "one of the two files of the recovery blob is damaged; the other is used");
                }
                match Blob::from_bytes(&blob) {
                    Ok(blob) => Kept::Blob(Arc::new(KeptBlob { blob, content_hash })),
                    Err(error) => Kept::Unusable(with_causes(&error)),
                }
            }
            Err(error) => Kept::Unusable(with_causes(&error)),
        };
        if let Kept::Unusable(reason) = &kept {
            tracing::warn!(reason, "the recovery blob of this node cannot be used");
        }
        self.recovery.kept.send_replace(kept);
    }

    /// Makes the blob on the ESP one of what the node has now. Returns it with the key that it is sealed to; none where there is nothing
    /// to seal, or nothing to seal it to.
    async fn renew_blob(&self, context: &Context) -> Result<Option<(RecoveryPublicKey, Arc<KeptBlob>)>, BlobError> {
        let _writing = self.recovery.writing.lock().await;
        let key = *self.settings.access.recovery_key().borrow();
        let Some(key) = key else { return Ok(None) };
        let key = RecoveryPublicKey::new(key).ok_or(BlobError::Key)?;
        let (store, gate) = (self.journal.clone(), self.gate.clone());
        let journal = context.blocking(move || gate.pass(|| store.load())).await.ok_or(BlobError::Ended)?;
        let journal = journal.map_err(BlobError::Journal)?;
        let Some((subject, content)) = journal.and_then(|journal| self.content(&journal.value)) else {
            return Ok(None);
        };
        let content_hash = content.hash(&key, &subject);
        let before = self.recovery.kept.borrow().clone();
        // One that was made for another key is to be gone from both files.
        let is_replaced = match before {
            Kept::Blob(kept) if kept.content_hash == content_hash => return Ok(Some((key, kept))),
            Kept::Blob(kept) => kept.blob.recipient() != key.fingerprint(),
            Kept::NotRead | Kept::None => false,
            Kept::Unusable(_) => true,
        };
        let blob = Blob::seal(&key, subject, &content)?;
        let record = RecoveryBlob { blob: blob.to_bytes(), content_hash };
        let (file, gate) = (self.layout.esp.polis.recovery.clone(), self.gate.clone());
        let is_unusable = matches!(&*self.recovery.kept.borrow(), Kept::Unusable(_));
        let stored = context.blocking(move || {
            gate.pass(|| {
                if is_unusable {
                    file.discard("recovery/discard")?;
                }
                file.store(&record, "recovery/blob")?;
                if is_replaced { file.store(&record, "recovery/blob") } else { Ok(()) }
            })
        });
        stored.await.ok_or(BlobError::Ended)??;
        tracing::info!(recovery_key = %key.fingerprint(), "what opens this node with the recovery key was written anew");
        let kept = Arc::new(KeptBlob { blob, content_hash });
        self.recovery.kept.send_replace(Kept::Blob(Arc::clone(&kept)));
        Ok(Some((key, kept)))
    }

    /// What is to be sealed, of a member whose data are open and encrypted.
    fn content(&self, journal: &Journal) -> Option<(BlobSubject, BlobContent)> {
        let opened = self.opened.borrow().as_ref()?.keys.as_ref()?.cluster.clone();
        let mut required = self.recovery.required.lock().unwrap_or_else(PoisonError::into_inner);
        if *required == Some(opened.clone()) {
            *required = None;
        }
        let (current, others) = match &*required {
            Some(required) => (required.clone(), vec![opened]),
            None => (opened, Vec::new()),
        };
        // A change that is under way may end with either.
        let known = journal
            .cluster_unlock_key
            .iter()
            .flat_map(|ClusterUnlockKey { current, pending }| pending.iter().chain([current]).cloned());
        let pending = known.chain(others).find(|key| *key != current);
        let content = BlobContent {
            record: journal.to_payload(),
            cluster_unlock_key: current,
            pending_cluster_unlock_key: pending,
        };
        Some((subject(journal)?, content))
    }
}
