//! [`OfflineData`]: the data partition of a node that does not run, opened for a command that works on its files.
//!
//! The keys come from where a start has them: both halves from the journal, where it keeps the cluster's. Nobody is asked, as whoever
//! works on the files of a node does so because nobody is left; in their place stands the recovery key of the cluster, with the blob on the ESP.

use std::sync::Arc;

use polis_recovery::node::{NodeState, NothingToOffer, offer};
use polis_recovery::{Blob, BlobError, OpenBlobError, RecoveryKey};
use polis_secret::Secret32;
use polis_storage::data::{DataError, Found, ProgressSender, UnlockKeys};
use polis_storage::journal::{ClusterUnlockKey, StorageSecurity};
use polis_storage::{
    DataBackends, DataPartition, DataUnavailable, Journal, JournalError, JournalStore, Layout, TwoGenerationsError,
};

use crate::bring_up::node_id;
use crate::failure::Failure;
use crate::recovery::subject;
use crate::unlock::{KeysAtStart, keys_at_start};

/// An open data partition of a node that does not run. It is to be closed; a process that is killed before leaves what the next one
/// that opens the partition clears. Has no `Debug`: it holds keys.
pub struct OfflineData {
    partition: Arc<dyn DataPartition>,
    /// Absent where there are none.
    keys: Option<UnlockKeys>,
}

/// The data partition was not opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenOfflineError {
    /// The journal is not one that a node could have written.
    #[error(transparent)]
    Journal(#[from] Failure),
    /// This machine cannot keep such data.
    #[error(transparent)]
    Unavailable(#[from] DataUnavailable),
    /// The partition.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is one half of the key only.
    #[error(
        "its data are encrypted, and one half of their key is not on this machine: a member of three or more keeps no copy of it beside its \
         own half, as the other members have it"
    )]
    NoKey,
    /// There is a copy of the other half, and it is not that of these data.
    #[error(
        "its data are encrypted, and the copy of the other half of their key that this machine has does not open them, as when files were \
         swapped or brought back from a backup"
    )]
    WrongCopy,
    /// The recovery blob cannot be read.
    #[error("the recovery blob of this node, which the recovery key would open, cannot be read")]
    BlobFile(#[source] TwoGenerationsError),
    /// The recovery blob is none.
    #[error("the recovery blob of this node, which the recovery key would open, cannot be used")]
    Blob(#[source] BlobError),
    /// There is none for this node.
    #[error("there is nothing here that the recovery key could open")]
    NoBlob(#[source] NothingToOffer),
    /// The recovery key opens it not.
    #[error("the recovery key does not open this node")]
    Words(#[source] OpenBlobError),
    /// What came out of the blob is not the key of these data.
    #[error(
        "the recovery key is the right one, and what it has opened does not open the data: the recovery blob is older than the last change \
         of their key, or the files of two nodes are mixed"
    )]
    WrongBlob,
}

impl OpenOfflineError {
    /// Whether the words of a recovery key could help, where none were given.
    #[must_use]
    pub const fn wants_recovery_key(&self) -> bool {
        matches!(self, Self::NoKey | Self::WrongCopy)
    }
}

impl OfflineData {
    /// Opens the data partition of the node with this journal: with the keys that the journal has, and else with what `recovery_key`
    /// opens.
    ///
    /// # Errors
    ///
    /// When neither does. Then it is closed.
    pub async fn open(
        backends: &dyn DataBackends,
        layout: &Layout,
        journal: &Journal,
        recovery_key: Option<&RecoveryKey>,
        progress: &ProgressSender,
    ) -> Result<Self, OpenOfflineError> {
        let security = journal.storage_security.unwrap_or(StorageSecurity::Insecure);
        let partition = backends.choose(security)?;
        let owner = node_id(journal)?.to_string();
        check_formatted(partition.prepare(progress).await?, layout, &owner)?;
        let (node, own) = match keys_at_start(journal)? {
            KeysAtStart::NotNeeded => {
                partition.open(&owner, None, progress).await?;
                return Ok(Self { partition, keys: None });
            }
            KeysAtStart::Own { node, cluster } => (node, cluster),
            KeysAtStart::FromOthers { node } => (node, Vec::new()),
        };
        let try_keys = async |cluster: &[Secret32]| {
            for cluster in cluster {
                let keys = UnlockKeys { node: node.clone(), cluster: cluster.clone() };
                match partition.open(&owner, Some(&keys), progress).await {
                    Ok(()) => return Ok(Some(keys)),
                    Err(DataError::WrongKeys { .. }) => {}
                    Err(error) => return Err(OpenOfflineError::Data(error)),
                }
            }
            Ok(None)
        };
        if let Some(keys) = try_keys(&own).await? {
            return Ok(Self { partition, keys: Some(keys) });
        }
        let Some(recovery_key) = recovery_key else {
            return Err(if own.is_empty() { OpenOfflineError::NoKey } else { OpenOfflineError::WrongCopy });
        };
        let keys = try_keys(&keys_in_blob(layout, journal, recovery_key)?).await?;
        Ok(Self { keys: Some(keys.ok_or(OpenOfflineError::WrongBlob)?), partition })
    }

    /// Sees to it that the node opens its data without anybody at its next start: a copy of the cluster's half that has opened them lies
    /// beside its own half (`cold-start.md`, "Threshold": a node that is alone). A copy that is there stays as it is. Blocks.
    ///
    /// # Errors
    ///
    /// When it cannot be made durable.
    pub fn keep_copy(&self, journal: &JournalStore, site: &'static str) -> Result<(), KeepCopyError> {
        let Some(UnlockKeys { cluster: opened, .. }) = &self.keys else { return Ok(()) };
        let mut present = journal.load()?.ok_or(KeepCopyError::NoJournal)?.value;
        let has_copy = |copy: &ClusterUnlockKey| copy.current == *opened || copy.pending.as_ref() == Some(opened);
        if present.cluster_unlock_key.as_ref().is_some_and(has_copy) {
            return Ok(());
        }
        present.cluster_unlock_key = Some(ClusterUnlockKey { current: opened.clone(), pending: None });
        Ok(journal.store(&present, site)?)
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// When it stays open; the next who opens it clears that.
    pub async fn close(&self) -> Result<(), DataError> {
        self.partition.close().await
    }
}

/// The copy was not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepCopyError {
    /// The journal.
    #[error("a copy of the key of the data could not be put into the enrolment journal")]
    Journal(#[from] JournalError),
    /// It is gone.
    #[error("the enrolment journal was there a moment ago, and it is gone")]
    NoJournal,
}

/// Whether what was found is a data partition that this node has formatted, as far as that can be told without keys.
///
/// # Errors
///
/// When it is not.
pub(crate) fn check_formatted(found: Found, layout: &Layout, owner: &str) -> Result<(), DataError> {
    let path = layout.data.directory.full_path();
    match found {
        Found::Formatted { owner: Some(found) } if found != owner => {
            Err(DataError::OtherNode { path, found, expected: owner.to_owned() })
        }
        Found::Formatted { .. } => Ok(()),
        Found::Nothing | Found::HalfFormatted | Found::Foreign { .. } => Err(DataError::NotFormatted { path }),
    }
}

/// The keys in the recovery blob on the ESP, in the order in which they are tried. It is believed only if it is this node's own.
fn keys_in_blob(
    layout: &Layout,
    journal: &Journal,
    recovery_key: &RecoveryKey,
) -> Result<Vec<Secret32>, OpenOfflineError> {
    let stored = layout.esp.polis.recovery.load().map_err(OpenOfflineError::BlobFile)?;
    let blob = stored.map(|stored| Blob::from_bytes(&stored.value.blob)).transpose().map_err(OpenOfflineError::Blob)?;
    let own = subject(journal).ok_or(OpenOfflineError::NoBlob(NothingToOffer::NoBlob))?;
    let blob = offer(&NodeState::Locked(own), blob.as_ref()).map_err(OpenOfflineError::NoBlob)?;
    let content_key = blob.content_key(recovery_key).map_err(OpenOfflineError::Words)?;
    let content = blob.open(&content_key).map_err(OpenOfflineError::Words)?;
    Ok(content.pending_cluster_unlock_key.into_iter().chain([content.cluster_unlock_key]).collect())
}
