//! The runnable that looks after the keys of a running node.

use std::time::Duration;

use polis_condition::Severity;
use polis_curator::services::unlock_key_hash;
use polis_secret::Secret32;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::{ClusterUnlockKey, SealKind, SealTrouble};
use polis_storage::{Journal, JournalError};
use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::time::{Instant, sleep_until};

use super::orders::{KeyOrder, KeyOrderError};
use super::plan::{Place, Standing, Step, keeps_copy, plan};
use super::rotation::{Change, RotationError};
use crate::cluster_access::News;
use crate::consensus::ConsensusProvider;
use crate::data::Opened;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::state::State;
use crate::trouble::{Curable, Ended, Trouble, of_seal};

/// How often it is looked whether the seal would open. A change of firmware settings or of keys shows this long before the next
/// start at the latest; each look is one conversation with a TPM, which wears nothing out.
const SEAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Name of the condition that the journal would not open at the next start.
pub(super) const SEAL_WOULD_NOT_OPEN: &str = "seal-would-not-open";

/// Name of the condition that the key of this node and the one that the cluster keeps are not in order yet.
const UNLOCK_KEY_UNSETTLED: &str = "unlock-key-unsettled";

/// Name of the condition that nobody comes back alone.
const COLD_START_NOT_POSSIBLE: &str = "cold-start-not-possible";

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable.
    pub(crate) async fn keep_keys(&self, context: Context) -> RunnableResult {
        context.healthy();
        let mut progress = self.publisher.watch();
        let running = progress.wait_for(|progress| progress.state == State::Running);
        // The Manager holds the sender.
        let _ = context.unless_cancelled(running).await?;
        let mut orders = self.key_orders.receiver.lock().await;
        let (mut seen, mut pauses) = (News::default(), Pauses::default());
        let (mut look_at, mut check_at) = (None, Instant::now());
        loop {
            tokio::select! {
                biased;
                cancelled = context.cancelled() => return Err(cancelled.into()),
                Some(order) = orders.recv() => {
                    context.unless_cancelled(self.carry_out(&context, order)).await?;
                }
                news = self.settings.access.news(&seen) => {
                    look_at = news.in_contact.then(Instant::now);
                    pauses = Pauses::default();
                    seen = news;
                }
                () = sleep_until(look_at.unwrap_or(check_at)), if look_at.is_some() => {
                    let settled = context.unless_cancelled(self.settle_key(&context, false)).await?;
                    let is_settled = self.tell(&context, settled);
                    look_at = (!is_settled).then(|| Instant::now() + pauses.next(Pace::Soon, rand::random()));
                }
                () = sleep_until(check_at) => {
                    context.unless_cancelled(self.check_seal(&context)).await?;
                    check_at = Instant::now() + SEAL_CHECK_INTERVAL;
                }
            }
        }
    }

    async fn carry_out(&self, context: &Context, order: KeyOrder) {
        // Whoever has asked may have gone; what was begun is done all the same.
        match order {
            KeyOrder::Rekey(reply) => {
                let settled = self.settle_key(context, true).await;
                let outcome = match &settled {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(KeyOrderError::NotEncrypted),
                    Err(unsettled) => Err(unsettled.as_order_error()),
                };
                self.tell(context, settled);
                let _ = reply.send(outcome);
            }
            KeyOrder::Settle(reply) => {
                let settled = self.settle_key(context, false).await;
                let outcome = settled.as_ref().map(|_| ()).map_err(Unsettled::as_order_error);
                self.tell(context, settled);
                let _ = reply.send(outcome);
            }
            KeyOrder::Reseal(reply) => {
                let _ = reply.send(self.reseal(context).await);
            }
        }
    }

    /// Says whether the key is in order, and returns that.
    fn tell(&self, context: &Context, settled: Result<bool, Unsettled>) -> bool {
        match settled {
            Ok(_) => {
                context.conditions().clear(UNLOCK_KEY_UNSETTLED);
                true
            }
            Err(Unsettled { error: RotationError::Stopping, .. }) => true,
            Err(Unsettled { error, begun }) => {
                let what = if begun {
                    "the cluster unlock key of this node is being replaced, which is not finished"
                } else {
                    "the cluster unlock key of this node could not be compared with the one that the cluster keeps"
                };
                context.conditions().raise(
                    UNLOCK_KEY_UNSETTLED,
                    Severity::Warning,
                    format!("{what}: {}", with_causes(&error)),
                    "nothing is lost by this: a key that opens the data is known whatever happens; it is tried again by itself",
                );
                false
            }
        }
    }

    /// Brings the key of the data partition, the one in the journal and the one that the cluster keeps into order; replaces it if
    /// that is `asked` for. Returns whether there is a key at all.
    async fn settle_key(&self, context: &Context, asked: bool) -> Result<bool, Unsettled> {
        let opened = self.opened.borrow().clone();
        let Some(Opened { partition, keys: Some(keys) }) = opened else { return Ok(false) };
        let journal = self.read_journal(context).await.map_err(|ended| Unsettled::of(false, ended))?;
        let Some(journal) = journal else { return Ok(true) };
        let kept = self.settings.access.check_unlock_key().await.map_err(|error| Unsettled::of(false, error))?;
        self.tell_cold_start(context, kept.standing);
        let mut begun = match &journal.cluster_unlock_key {
            // What has opened the data counts: a journal that was brought back from a backup may know older keys.
            Some(ClusterUnlockKey { current, pending: Some(pending) })
                if [current, pending].contains(&&keys.cluster) =>
            {
                Some((current.clone(), pending.clone()))
            }
            Some(ClusterUnlockKey { pending: Some(_) | None, .. }) | None => None,
        };
        if begun.is_none() && kept.hash != Some(unlock_key_hash(&keys.cluster)) {
            // The cluster was restored from an older state, or the answer to the last change was lost.
            let stored = self.settings.access.store_unlock_key(&keys.cluster).await;
            stored.map_err(|error| Unsettled::of(false, error))?;
            tracing::info!("the cluster did not keep the key of this node's data; it does now");
        }
        let step = plan(kept.standing, journal.cluster_unlock_key.is_some(), asked);
        if begun.is_none() && matches!(step, Step::Rotate { .. }) {
            let current = keys.cluster.clone();
            let pending = self.begin_rotation(context, current.clone()).await;
            begun = Some((current, pending.map_err(|error| Unsettled::of(false, error))?));
        }
        match begun {
            Some((current, pending)) => {
                let with = |cluster| UnlockKeys { node: keys.node.clone(), cluster };
                let (old, new) = (with(current), with(pending));
                let change = Change { partition, old, new, keep: keeps_copy(kept.standing) };
                self.finish_rotation(context, change).await.map_err(|error| Unsettled::of(true, error))?;
            }
            None => {
                let settled = self.settle_copy(context, &journal, &keys.cluster, step).await;
                settled.map_err(|ended| Unsettled::of(false, ended))?;
            }
        }
        Ok(true)
    }

    /// Keeps the key in the journal, or takes it out of both generations.
    async fn settle_copy(&self, context: &Context, journal: &Journal, key: &Secret32, step: Step) -> Result<(), Ended> {
        let stale =
            (journal.cluster_unlock_key.as_ref()).is_some_and(|copy| copy.current != *key || copy.pending.is_some());
        let copy = match step {
            Step::Drop => None,
            Step::Keep => Some(key.clone()),
            Step::Nothing if stale => Some(key.clone()),
            Step::Nothing | Step::Rotate { .. } => return Ok(()),
        };
        let kept_here = copy.is_some();
        self.change_journal(context, "journal/unlock-key", true, move |journal| {
            journal.cluster_unlock_key = copy.clone().map(|current| ClusterUnlockKey { current, pending: None });
        })
        .await?;
        tracing::info!(kept_here, "where the cluster unlock key of this node is kept has changed");
        Ok(())
    }

    /// Says what a power failure of all members would mean.
    fn tell_cold_start(&self, context: &Context, standing: Standing) {
        if standing.place == Place::Voter && !keeps_copy(standing) {
            context.conditions().raise(
                COLD_START_NOT_POSSIBLE,
                Severity::Info,
                "this node opens its encrypted data with a key that the running cluster gives it: members that stop one after the \
                 other come back, but if so many of them lose power together that no quorum is left, none of those comes back",
                "unlocking without a running cluster is not possible in this build; keep a quorum running, also in maintenance",
            );
        } else {
            context.conditions().clear(COLD_START_NOT_POSSIBLE);
        }
    }

    /// Looks whether the journal would open at the next start of the machine, and says so if not.
    async fn check_seal(&self, context: &Context) {
        let store = self.journal.clone();
        let checked = context.blocking(move || store.check()).await;
        match checked {
            Err(JournalError::Unseal { source, .. }) => {
                let (cause, hint) = match of_seal(&source) {
                    Trouble::Curable(Curable { message, hint, .. }) => (message, hint),
                    Trouble::Final(failure) => (with_causes(&failure), String::new()),
                };
                let remedy = match source.trouble {
                    SealTrouble::OtherBootState => {
                        "if the present state is the right one, renew the seal while the node runs: `polis node reseal`"
                            .to_owned()
                    }
                    SealTrouble::NoDevice
                    | SealTrouble::NotAnswering
                    | SealTrouble::OtherDevice
                    | SealTrouble::Damaged
                    | SealTrouble::HelperMissing => hint,
                };
                context.conditions().raise(
                    SEAL_WOULD_NOT_OPEN,
                    Severity::Error,
                    format!("the keys of this node would not open at its next start: {cause}"),
                    remedy,
                );
            }
            // What else is wrong with the files shows where they are used.
            Ok(()) | Err(_) => context.conditions().clear(SEAL_WOULD_NOT_OPEN),
        }
    }

    /// Renews the seal.
    async fn reseal(&self, context: &Context) -> Result<SealKind, KeyOrderError> {
        let kind = self.journal.seal_kind().unwrap_or(SealKind::Plain);
        if kind == SealKind::Plain {
            return Err(KeyOrderError::NotSealed);
        }
        let (store, gate) = (self.journal.clone(), self.gate.clone());
        match context.blocking(move || gate.pass(|| store.reseal("journal/reseal"))).await {
            None => return Err(KeyOrderError::Busy),
            Some(Err(error)) => return Err(KeyOrderError::NotBegun { reason: with_causes(&error) }),
            Some(Ok(())) => {}
        }
        tracing::info!(seal = %kind, "the seal of this node's keys was renewed");
        self.check_seal(context).await;
        Ok(kind)
    }

    async fn read_journal(&self, context: &Context) -> Result<Option<Journal>, Ended> {
        let store = self.journal.clone();
        Ok(self.on_disk(context, move || store.load()).await?.map(|loaded| loaded.value))
    }

    /// Changes the newest journal, with nothing in between. With `both`, no generation holds anything of an earlier one then.
    pub(super) async fn change_journal(
        &self,
        context: &Context,
        site: &'static str,
        both: bool,
        change: impl Fn(&mut Journal) + Send + Sync + 'static,
    ) -> Result<(), Ended> {
        let store = self.journal.clone();
        let changed = self
            .on_disk(context, move || {
                let Some(loaded) = store.load()? else { return Ok(None) };
                let mut journal = loaded.value;
                change(&mut journal);
                if both {
                    store.store_both(&journal, site)?;
                } else {
                    store.store(&journal, site)?;
                }
                Ok::<_, JournalError>(Some(journal))
            })
            .await?;
        match changed {
            Some(journal) => {
                self.record(&journal);
                Ok(())
            }
            None => Err(Ended::Failed(Failure::Disk {
                what: "the enrolment journal cannot be used",
                source: "it was there when this node started, and it is gone; bring it back".into(),
            })),
        }
    }
}

/// Why the key is not in order.
struct Unsettled {
    error: RotationError,
    /// Whether it is being replaced, so that the next look goes on with that.
    begun: bool,
}

impl Unsettled {
    fn of(begun: bool, error: impl Into<RotationError>) -> Self {
        Self { error: error.into(), begun }
    }

    /// The same for whoever has asked for it.
    fn as_order_error(&self) -> KeyOrderError {
        let reason = with_causes(&self.error);
        if self.begun { KeyOrderError::Unfinished { reason } } else { KeyOrderError::NotBegun { reason } }
    }
}
