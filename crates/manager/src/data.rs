//! The data partition of the node: which backend it has, how it is opened, and what happens when it is lost.

use std::sync::Arc;

use polis_condition::Severity;
use polis_secret::Secret32;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::StorageSecurity;
use polis_storage::{DataPartition, Journal};
use polis_supervisor::Context;
use polis_unlock_service::Lock;
use tokio::time::sleep;

use crate::bring_up::node_id;
use crate::cold_start::{DATA_KEYS_WRONG, Door};
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::trouble::{Ended, until_cured};
use crate::unlock::{KeysAtStart, keys_at_start};

/// What to do about data that are not protected.
const STORAGE_INSECURE_HINT: &str =
    "this is what the parameters ask for, and good enough for a trial: keep nothing here that others must not read";

/// What to do about what a backend does not protect from.
const STORAGE_LIMITS_HINT: &str = "nothing needs to be done if that is enough for this node; else give it a device of its own (--data-device), which shows less to \
     whoever has the disk in his hands, and whose data no power cut makes unreadable";

/// Name of the condition that the data partition was lost under the running node.
const DATA_LOST: &str = "data-partition-lost";

/// An open data partition, and what has opened it. Has no `Debug`: it holds keys.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) partition: Arc<dyn DataPartition>,
    /// Absent where there are none.
    pub(crate) keys: Option<UnlockKeys>,
}

impl<C: ConsensusProvider> Inner<C> {
    /// The backend for this protection. One that this host lacks is waited for.
    pub(crate) async fn choose_data(
        &self,
        context: &Context,
        security: StorageSecurity,
    ) -> Result<Arc<dyn DataPartition>, Ended> {
        let partition = until_cured(context, || async { Ok(self.settings.backends.choose(security)?) }).await?;
        self.publisher.choose(partition.describe());
        Ok(partition)
    }

    /// Opens the data partition, however long that takes.
    pub(crate) async fn open_data(&self, context: &Context, journal: &Journal) -> Result<(), Ended> {
        let security = journal.storage_security.unwrap_or(StorageSecurity::Insecure);
        let partition = self.choose_data(context, security).await?;
        let owner = node_id(journal)?.to_string();
        let keys = match keys_at_start(journal)? {
            KeysAtStart::NotNeeded => {
                self.cold_start.set_lock(Lock::Open);
                until_cured(context, || async { Ok(partition.open(&owner, None, &self.data_progress).await?) }).await?;
                None
            }
            KeysAtStart::Own { node, cluster: own } => {
                self.cold_start.set_lock(Lock::Locked);
                let door = Door::new(context, &*partition, &owner, &node, &self.data_progress);
                Some(self.open_with_keys(context, journal, &door, &own).await?)
            }
            KeysAtStart::FromOthers { node } => {
                self.cold_start.set_lock(Lock::Locked);
                let door = Door::new(context, &*partition, &owner, &node, &self.data_progress);
                Some(self.open_with_keys(context, journal, &door, &[]).await?)
            }
        };
        context.conditions().clear(DATA_LOST);
        if let Some(warning) = partition.describe().warning {
            match security {
                StorageSecurity::Insecure => {
                    context.conditions().raise("storage-insecure", Severity::Warning, warning, STORAGE_INSECURE_HINT);
                }
                // More cannot be expected of what is only to be encrypted; where it is to be authenticated too, something is missing.
                StorageSecurity::Encrypted => {
                    context.conditions().raise("storage-limits", Severity::Info, warning, STORAGE_LIMITS_HINT);
                }
                StorageSecurity::AuthenticatedEncrypted => {
                    context.conditions().raise("storage-limits", Severity::Warning, warning, STORAGE_LIMITS_HINT);
                }
            }
        }
        self.opened.send_replace(Some(Opened { partition, keys }));
        self.cold_start.set_lock(Lock::Open);
        Ok(())
    }

    /// Opens the data partition with the first of the `own` keys that does. When none does, or there is none, others are asked for one.
    async fn open_with_keys(
        &self,
        context: &Context,
        journal: &Journal,
        door: &Door<'_>,
        own: &[Secret32],
    ) -> Result<UnlockKeys, Ended> {
        let mut pauses = Pauses::default();
        loop {
            // What has come out of a recovery blob a moment ago is in no journal.
            let recovered = self.recovery.opened_with();
            if let Some(keys) =
                door.try_keys(&recovered.into_iter().chain(own.iter().cloned()).collect::<Vec<_>>()).await?
            {
                context.conditions().clear(DATA_KEYS_WRONG);
                return Ok(keys);
            }
            if !own.is_empty() {
                door.say_wrong();
            }
            // A founder that has not got as far has nobody to ask.
            if own.is_empty() || journal.cluster_ca.is_some() {
                return self.open_by_others(context, journal, door, own).await;
            }
            context.unless_cancelled(sleep(pauses.next(Pace::Soon, rand::random()))).await?;
        }
    }

    /// Waits until the open data partition is lost, and returns why.
    pub(crate) async fn data_lost(&self) -> String {
        let mut opened = self.opened.subscribe();
        // This very value holds the sender.
        let partition = match opened.wait_for(Option::is_some).await {
            Ok(opened) => opened.as_ref().map(|opened| opened.partition.clone()),
            Err(_) => None,
        };
        match partition {
            Some(partition) => partition.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the node ready to open its lost data partition again: consensus stops first, and nothing of it is left.
    pub(crate) async fn give_up_data(&self, context: &Context, reason: &str) -> Result<(), Ended> {
        tracing::error!(reason, "the data partition was lost; consensus stops, and the partition is opened again");
        context.conditions().raise(
            DATA_LOST,
            Severity::Error,
            format!("the data partition was lost under the running node: {reason}"),
            "nothing is lost that was acknowledged; the node stops its consensus member, opens the partition again and goes on; if this \
             comes again, the disk fails or was changed: have another node take over, and replace it",
        );
        context.unless_cancelled(self.consensus.suspend()).await?;
        // What is being written ends, one way or the other.
        let gate = self.gate.clone();
        context.blocking(move || gate.pass(|| ())).await;
        let lost = self.opened.send_replace(None);
        if let Some(Opened { partition, keys }) = lost {
            if keys.is_some() {
                self.cold_start.set_lock(Lock::Locked);
            }
            until_cured(context, || async {
                partition.close().await?;
                partition.prepare(&self.data_progress).await?;
                Ok(())
            })
            .await?;
        }
        self.consensus.resume();
        Ok(())
    }
}
