//! A journal that cannot be unsealed: it is waited for, and may come back by the recovery key.

use std::sync::PoisonError;

use polis_condition::Severity;
use polis_storage::data::{DataError, UnlockKeys};
use polis_storage::journal::SealTrouble;
use polis_storage::{GenerationsError, Journal, JournalError, Layout, Loaded};
use polis_supervisor::{BoxError, Context, with_causes};
use polis_unlock_service::Lock;
use tokio::time::sleep;

use super::orders::RecoveryOrder;
use crate::bring_up::node_id;
use crate::consensus::ConsensusProvider;
use crate::data_offline::check_formatted;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::sealing::applicants_seal;
use crate::trouble::{Curable, Ended, Trouble};

/// Name of the condition that the journal is damaged, and a recovery blob is there that could bring it back.
const JOURNAL_DAMAGED: &str = "journal-damaged";

/// Whether the node has something to wait for although its journal is damaged: then somebody with the recovery key can bring it back.
/// Changes nothing.
pub(crate) fn is_recoverable(layout: &Layout, error: &JournalError) -> bool {
    is_damage(error) && matches!(layout.esp.polis.recovery.load(), Ok(Some(_)))
}

/// Whether the journal is there and was spoiled, by whatever has done it. One of a newer version is not.
fn is_damage(error: &JournalError) -> bool {
    match error {
        JournalError::Files(GenerationsError::BothUnusable { .. }) | JournalError::Invalid { .. } => true,
        JournalError::Unseal { source, .. } => source.trouble == SealTrouble::Damaged,
        JournalError::Files(
            GenerationsError::Disk(_) | GenerationsError::FutureVersion { .. } | GenerationsError::TooLong { .. },
        )
        | JournalError::Disk(_)
        | JournalError::UnknownSeal { .. }
        | JournalError::Seal { .. }
        | JournalError::Refused { .. } => false,
    }
}

/// Whether only somebody else can say what stands in the journal, as long as this lasts.
fn is_sealed(error: &JournalError) -> bool {
    is_damage(error) || matches!(error, JournalError::Unseal { .. })
}

impl<C: ConsensusProvider> Inner<C> {
    /// The journal of the node, however long it takes until it can be read. While its seal does not open, or while it is damaged and
    /// there is a recovery blob, the node says that it is sealed, and waits for the recovery key as well.
    pub(crate) async fn load_or_recover(&self, context: &Context) -> Result<Option<Loaded<Journal>>, Ended> {
        let mut pauses = Pauses::default();
        let mut raised = None;
        loop {
            let (store, layout, gate) = (self.journal.clone(), self.layout.clone(), self.gate.clone());
            let loading = context
                .blocking(move || gate.pass(|| store.load().map_err(|error| (is_recoverable(&layout, &error), error))));
            let loaded = match context.unless_cancelled(loading).await? {
                Some(loaded) => loaded,
                // Whoever has closed the gate ends this as well.
                None => std::future::pending().await,
            };
            let (is_recoverable, error) = match loaded {
                Ok(loaded) => {
                    self.unsealed(context, raised);
                    return Ok(loaded);
                }
                Err(failed) => failed,
            };
            let is_sealed = is_sealed(&error);
            let Curable { condition, severity, message, hint, pace } = match self.trouble_of(is_recoverable, error) {
                Trouble::Curable(curable) => curable,
                Trouble::Final(failure) => return Err(Ended::Failed(failure)),
            };
            if let Some(old) = raised.filter(|old| *old != condition) {
                context.conditions().clear(old);
            }
            raised = Some(condition);
            context.conditions().raise(condition, severity, message.clone(), hint);
            if is_sealed {
                self.look_whose_data(context).await;
                self.cold_start.set_lock(Lock::Sealed { reason: message });
            }
            let pause = pauses.next(pace, rand::random());
            let order = async {
                tokio::select! {
                    () = sleep(pause) => None,
                    order = self.recovery.order(), if is_sealed => Some(order),
                }
            };
            if let Some(order) = context.unless_cancelled(order).await? {
                self.take_record(context, order).await?;
            }
        }
    }

    fn unsealed(&self, context: &Context, raised: Option<&'static str>) {
        if let Some(condition) = raised {
            context.conditions().clear(condition);
        }
        if matches!(*self.cold_start.lock.borrow(), Lock::Sealed { .. }) {
            self.cold_start.set_lock(Lock::Locked);
        }
    }

    /// What a journal that cannot be read means for the node.
    fn trouble_of(&self, is_recoverable: bool, error: JournalError) -> Trouble {
        if !is_recoverable {
            return error.into();
        }
        Trouble::Curable(Curable {
            condition: JOURNAL_DAMAGED,
            severity: Severity::Error,
            message: with_causes(&error),
            hint: "bring the files back from a backup, or open the node with the recovery key of its cluster: polis unlock --recovery \
                   - --fingerprint, with the fingerprint that this node shows; nothing is changed before its data are open"
                .to_owned(),
            pace: Pace::Soon,
        })
    }

    /// Sees whose data partition there is, as far as that can be told without keys.
    async fn look_whose_data(&self, context: &Context) {
        let marker = self.layout.encrypted.partition.clone();
        let found = context.blocking(move || marker.peek().ok().flatten()).await;
        let node = found.and_then(|marker| marker.node_id.parse().ok());
        *self.recovery.found_node.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// Opens the data with what came out of a blob, and then makes its record the journal. Without the first nothing is written.
    async fn take_record(&self, context: &Context, order: RecoveryOrder) -> Result<(), Ended> {
        match self.try_record(context, &order).await {
            Ok(true) => {
                tracing::warn!("the record of this node came back by the recovery key, and is sealed anew");
                order.restored();
            }
            Ok(false) => order.wrong(),
            Err(RecordError::Ended(ended)) => return Err(ended),
            Err(RecordError::Other(error)) => {
                tracing::error!(
                    reason = with_causes(&*error),
                    "the recovery key was right, and this node could not be opened"
                );
                order.failed(error);
            }
        }
        Ok(())
    }

    /// Whether one of the keys opens the data.
    async fn try_record(&self, context: &Context, order: &RecoveryOrder) -> Result<bool, RecordError> {
        let Some(journal) = order.journal() else {
            return Err(RecordError::Other("the node is in another state by now; ask it again".into()));
        };
        let owner = node_id(journal).map_err(|failure| RecordError::Other(failure.into()))?.to_string();
        let security = journal.storage_security.ok_or_else(|| RecordError::Other("the record has no data".into()))?;
        let node = journal.node_unlock_key.clone();
        let node = node.ok_or_else(|| RecordError::Other("the record has no key of the data".into()))?;
        let partition = self.settings.backends.choose(security).map_err(other)?;
        let found = context.unless_cancelled(partition.prepare(&self.data_progress)).await.map_err(ended)?;
        check_formatted(found.map_err(other)?, &self.layout, &owner).map_err(other)?;
        for cluster in order.keys() {
            let keys = UnlockKeys { node: node.clone(), cluster: cluster.clone() };
            let opening = partition.open(&owner, Some(&keys), &self.data_progress);
            match context.unless_cancelled(opening).await.map_err(ended)? {
                Ok(()) => {}
                Err(DataError::WrongKeys { .. }) => continue,
                Err(error) => return Err(other(error)),
            }
            if let Err(error) = self.restore_journal(context, journal).await {
                // As before: nobody is to find open what has no journal.
                let closed = context.unless_cancelled(partition.close()).await.map_err(ended)?;
                if let Err(error) = closed {
                    tracing::warn!(reason = with_causes(&error), "the data partition was not closed again");
                }
                return Err(error);
            }
            *self.recovery.opened_with.lock().unwrap_or_else(PoisonError::into_inner) = Some(cluster.clone());
            return Ok(true);
        }
        Ok(false)
    }

    async fn restore_journal(&self, context: &Context, journal: &Journal) -> Result<(), RecordError> {
        let (store, seals, gate, journal) =
            (self.journal.clone(), self.settings.seals.clone(), self.gate.clone(), journal.clone());
        let restored = context.blocking(move || {
            gate.pass(|| {
                // Where the old one does not tell any more, it is the better of those that the machine has.
                store.restore(&journal, || applicants_seal(seals.tpm_available()), "journal/recovered")
            })
        });
        match context.unless_cancelled(restored).await.map_err(ended)? {
            Some(restored) => restored.map_err(other),
            None => std::future::pending().await,
        }
    }
}

/// Why a record was not taken.
enum RecordError {
    /// The node is being stopped.
    Ended(Ended),
    /// Something is not as it must be.
    Other(BoxError),
}

fn ended(error: impl Into<Ended>) -> RecordError {
    RecordError::Ended(error.into())
}

fn other(error: impl Into<BoxError>) -> RecordError {
    RecordError::Other(error.into())
}
