//! The end of a node's membership: what is written down, what is erased, and in which order.
//!
//! A node that was **removed** records that in its journal, fails, and leaves everything else as it is: every later start says so
//! and touches nothing (window W22).
//!
//! A node that is **decommissioned** erases what makes it a node, before it reports that. The journal goes first, in both
//! generations, so that no start can take the node for one that is still a member; the credentials of the node go last, so that
//! as long as they are there the erasing is not finished, and a later start finishes it.

use std::sync::Arc;

use polis_consensus::set_aside_directories;
use polis_secret::Secret32;
use polis_storage::journal::{Phase, StorageSecurity, TransitionError};
use polis_storage::{
    Disk, DiskError, DiskPath, Journal, JournalError, JournalStore, Layout, TwoGenerationsError, durable,
};
use polis_supervisor::Context;

use crate::bring_up::internal;
use crate::consensus::ConsensusProvider;
use crate::enrolment::without_ticket;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble, until_cured};
use crate::verdict;

/// What has been ordered about the end of the membership. Orders only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Why the membership ends, once it does. The first reason stays.
    pub(crate) reason: Option<String>,
    /// Whether the key material is to be erased.
    pub(crate) erase: bool,
    /// Whether the node is to stop.
    pub(crate) stop: bool,
}

impl<C: ConsensusProvider> Inner<C> {
    /// Carries out what has been ordered, and returns when the node has failed or is being stopped. Returns at once when nothing has
    /// been ordered.
    pub(crate) async fn end_membership(&self, context: &Context) -> Result<(), Ended> {
        let mut orders = self.orders.subscribe();
        loop {
            let Orders { reason, erase, stop } = orders.borrow_and_update().clone();
            let Some(reason) = reason else { return Ok(()) };
            // What is being written is written; what would be written next is not.
            let gate = self.gate.clone();
            context.blocking(move || gate.close()).await;
            for name in verdict::CONDITIONS {
                context.conditions().clear(name);
            }
            // Nobody is helped any more by a node that is no member.
            self.cold_start.keys.send_replace(None);
            if erase {
                self.erase(context, &reason).await?;
                self.erased.send_replace(true);
            }
            if stop {
                if !erase {
                    self.record_removal(context, &reason).await?;
                }
                return Err(Ended::Failed(Failure::Removed { reason }));
            }
            // The handle of the Manager holds the sender.
            let _ = context.unless_cancelled(orders.changed()).await?;
        }
    }

    /// Finishes what an earlier start has begun to erase.
    pub(crate) async fn finish_erasing(&self, context: &Context, journal: &Journal) -> Result<(), Ended> {
        let (layout, removed) = (self.layout.clone(), journal.clone());
        let Phase::Removed { reason } = journal.phase() else { return Ok(()) };
        if !is_erased(journal) || !self.on_disk(context, move || keys_are_left(&layout, &removed)).await? {
            return Ok(());
        }
        self.erase(context, reason).await
    }

    /// Records in the journal that the node was removed. A node without a journal has nothing to remember.
    async fn record_removal(&self, context: &Context, reason: &str) -> Result<(), Ended> {
        let (store, reason) = (self.journal.clone(), reason.to_owned());
        self.at_the_end(context, move || {
            let Some(journal) = store.load()?.map(|loaded| loaded.value) else { return Ok(None) };
            if matches!(journal.phase(), Phase::Removed { .. }) {
                return Ok(Some(journal));
            }
            let removed = journal.advance(Phase::Removed { reason: reason.clone() })?;
            store.store(&removed, "journal/removed")?;
            Ok(Some(removed))
        })
        .await
    }

    /// Erases what makes this machine the node that it is.
    async fn erase(&self, context: &Context, reason: &str) -> Result<(), Ended> {
        let (store, layout, disk) = (self.journal.clone(), self.layout.clone(), self.settings.disk.clone());
        let reason = reason.to_owned();
        self.at_the_end(context, move || {
            // While the journal says that the node is a member, what is missing here is made anew; afterwards nobody would look.
            layout.esp.polis.recovery.discard("erase/recovery")?;
            layout.esp.polis.unlock.discard("erase/unlock")?;
            let journal = erase_journal(&store, &reason)?;
            match (erase_files(&layout, &disk), &journal) {
                (Ok(()), _) => {}
                // The partition was lost meanwhile, and nobody can open it any more.
                (Err(error), Some(journal)) if !keys_are_left(&layout, journal).unwrap_or(true) => {
                    tracing::info!(%error, "the files of this node are not erased, as nobody can read them without its keys");
                }
                (Err(error), _) => return Err(error.into()),
            }
            Ok(journal)
        })
        .await?;
        tracing::info!("the keys of this node are erased");
        Ok(())
    }

    /// Does work on the disk that leaves this journal, if there is one, also when the gate is closed.
    async fn at_the_end<F>(&self, context: &Context, work: F) -> Result<(), Ended>
    where
        F: Fn() -> Result<Option<Journal>, EndingError> + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        let journal = until_cured(context, || {
            let work = work.clone();
            async move { context.blocking(move || work()).await.map_err(Trouble::from) }
        })
        .await?;
        if let Some(journal) = journal {
            self.record(&journal);
        }
        Ok(())
    }
}

/// Why the end of a membership could not be made durable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndingError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file of two generations.
    #[error(transparent)]
    Generations(#[from] TwoGenerationsError),
    /// The journal does not allow it, which it always does.
    #[error("a step that the enrolment journal does not allow")]
    Phase(#[from] TransitionError),
}

impl From<EndingError> for Trouble {
    fn from(error: EndingError) -> Self {
        match error {
            EndingError::Journal(error) => error.into(),
            EndingError::Disk(error) => error.into(),
            EndingError::Generations(error) => error.into(),
            EndingError::Phase(error) => Self::Final(internal(error)),
        }
    }
}

/// Whether this journal is that of a node that has begun to erase its keys.
pub(crate) fn is_erased(journal: &Journal) -> bool {
    journal.join_key == no_key()
}

/// Whether a node that has begun to erase its keys still has some. Data that are encrypted opened with keys that the journal held, and
/// nothing in them can be read since those are gone.
pub(crate) fn keys_are_left(layout: &Layout, journal: &Journal) -> Result<bool, DiskError> {
    match journal.storage_security {
        Some(StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted) => Ok(false),
        Some(StorageSecurity::Insecure) | None => layout.data.node.credentials.exists(),
    }
}

/// What stands where a key was.
const fn no_key() -> Secret32 {
    Secret32::new([0; 32])
}

/// Takes every secret out of the journal, in both of its generations.
fn erase_journal(store: &JournalStore, reason: &str) -> Result<Option<Journal>, EndingError> {
    let Some(journal) = store.load()?.map(|loaded| loaded.value) else { return Ok(None) };
    let mut journal = journal.advance(Phase::Removed { reason: reason.to_owned() })?;
    journal.node_key = None;
    journal.join_key = no_key();
    journal.share_key = no_key();
    journal.node_unlock_key = None;
    journal.cluster_unlock_key = None;
    journal.parameters = without_ticket(&journal.parameters);
    store.store_both(&journal, "erase/journal")?;
    Ok(Some(journal))
}

/// Removes the files with keys in them, and what its consensus member has left behind when it ended; the credentials of the node
/// last.
fn erase_files(layout: &Layout, disk: &Arc<dyn Disk>) -> Result<(), DiskError> {
    let (ephemeral, etcd, node) = (&layout.ephemeral.consensus, &layout.data.etcd, &layout.data.node);
    if ephemeral.directory.exists()? {
        ephemeral.peer_key.remove()?;
    }
    if etcd.directory.exists()? {
        let erase = |path: &DiskPath| {
            disk.clear_directory(path)?;
            durable::settle(&**disk, "erase/etcd/data", path)
        };
        // All of them hold the keys of the cluster. In this order none is missed that is being set aside meanwhile.
        if etcd.data.exists()? {
            erase(etcd.data.path())?;
        }
        for path in set_aside_directories(&**disk, etcd)? {
            erase(&path)?;
        }
        etcd.credentials.remove("erase/etcd/credentials")?;
        etcd.joining.remove("erase/etcd/joining")?;
    }
    if layout.data.snapshots.exists()? {
        disk.clear_directory(layout.data.snapshots.path())?;
        durable::settle(&**disk, "erase/snapshots", layout.data.snapshots.path())?;
    }
    if node.directory.exists()? {
        node.credentials.remove("erase/node/credentials")?;
    }
    Ok(())
}
