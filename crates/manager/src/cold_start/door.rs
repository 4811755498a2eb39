//! [`Door`]: the data partition of a node that has its own half of the key, and looks for the other.

use async_trait::async_trait;
use polis_condition::Severity;
use polis_secret::Secret32;
use polis_storage::DataPartition;
use polis_storage::data::{DataError, ProgressSender, UnlockKeys};
use polis_supervisor::Context;
use polis_unlock::{ClusterUnlockKey, Proof};
use polis_unlock_service::{OpenError, Opener};
use tokio::sync::{Mutex, MutexGuard};

use crate::trouble::{Ended, Trouble, until_cured};

/// Name of the condition that no key that the node has opens its data.
pub(crate) const DATA_KEYS_WRONG: &str = "data-keys-wrong";

/// The data partition of a node that has its own half of the key. Several may try keys; they are tried one after the other.
pub(crate) struct Door<'a> {
    context: &'a Context,
    partition: &'a dyn DataPartition,
    /// Id of the node, as the partition names its owner.
    owner: &'a str,
    /// The node unlock key.
    node: &'a Secret32,
    progress: &'a ProgressSender,
    /// Held while a key is tried.
    trying: Mutex<()>,
}

impl<'a> Door<'a> {
    pub(crate) fn new(
        context: &'a Context,
        partition: &'a dyn DataPartition,
        owner: &'a str,
        node: &'a Secret32,
        progress: &'a ProgressSender,
    ) -> Self {
        Self { context, partition, owner, node, progress, trying: Mutex::default() }
    }

    /// Tries to open the data with this key, however long that takes. Returns the keys with which they are open; nothing when it is not
    /// the key, and then nothing has changed.
    pub(crate) async fn try_key(&self, cluster: &Secret32) -> Result<Option<UnlockKeys>, Ended> {
        let keys = UnlockKeys { node: self.node.clone(), cluster: cluster.clone() };
        let _trying = self.trying.lock().await;
        let opened = until_cured(self.context, || async {
            match self.partition.open(self.owner, Some(&keys), self.progress).await {
                Ok(()) => Ok(true),
                Err(DataError::WrongKeys { .. }) => Ok(false),
                Err(error) => Err(Trouble::from(error)),
            }
        });
        Ok(opened.await?.then_some(keys))
    }

    /// The same with the first of these that opens them.
    pub(crate) async fn try_keys(&self, cluster: &[Secret32]) -> Result<Option<UnlockKeys>, Ended> {
        for key in cluster {
            if let Some(keys) = self.try_key(key).await? {
                return Ok(Some(keys));
            }
        }
        Ok(None)
    }

    /// Waits until no key is being tried, and lets none be tried for as long as what it returns lives.
    pub(super) async fn untried(&self) -> MutexGuard<'_, ()> {
        self.trying.lock().await
    }

    /// Says that no key that should open the data does.
    pub(crate) fn say_wrong(&self) {
        self.context.conditions().raise(
            DATA_KEYS_WRONG,
            Severity::Error,
            "no key that this node has or was given opens its data partition; nothing was changed",
            "if directories or disks were swapped or brought back from a backup, put those together that belong together; the node goes \
             on trying, with its own keys and with those that the cluster and the other members give it",
        );
    }
}

/// Opens a door with what the other members give.
pub(super) struct ByShares<'a> {
    pub(super) door: &'a Door<'a>,
    /// Why it cannot go on, if that was it.
    pub(super) ended: Option<Ended>,
}

#[async_trait]
impl Opener for ByShares<'_> {
    type Opened = UnlockKeys;

    async fn open(&mut self, key: &ClusterUnlockKey, _: Proof) -> Result<UnlockKeys, OpenError> {
        match self.door.try_key(key.secret()).await {
            Ok(Some(keys)) => Ok(keys),
            Ok(None) => Err(OpenError::NotTheKey),
            Err(ended) => {
                self.ended = Some(ended);
                Err(OpenError::Trouble("the node does not go on".into()))
            }
        }
    }
}
