//! The runnable that looks after the keys of a running node.

use std::time::Duration;

use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::error::SettleError;
use super::memory::{Memory, Shown};
use super::orders::{KeyOrder, KeyOrderError};
use super::settle::Settled;
use crate::cluster_access::News;
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::state::State;

/// How often it is looked whether the seal would open. A TPM that was cleared, or that has died, shows within this time; each look is
/// one conversation with it, which wears nothing out.
const SEAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// How long after a look that was not good the next one is: whoever mends what was wrong sees soon that it is over.
const SEAL_RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// How long a drill may wait before that is said. Members that start together have all answered by then.
const DRILL_PATIENCE: Duration = Duration::from_secs(10);

/// How often it is said anew for whom a drill waits, and for how long.
const DRILL_NEWS_INTERVAL: Duration = Duration::from_secs(30);

/// How long whoever has asked for a new key waits for the other members to open their shares, which takes them some milliseconds. The
/// change goes on without being waited for.
const REKEY_PATIENCE: Duration = Duration::from_secs(10);

/// What a life of the runnable goes by.
#[derive(Default)]
struct Keeping {
    memory: Memory,
    seen: News,
    pauses: Pauses,
    /// When to look at the keys; never while nothing has happened.
    look_at: Option<Instant>,
    /// While a drill waits: when to say so, and whether the journal has a copy meanwhile.
    drilling: Option<(Instant, bool)>,
    /// Who waits for a new key.
    rekeys: Vec<oneshot::Sender<Result<(), KeyOrderError>>>,
    rekey_deadline: Option<Instant>,
}

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable.
    pub(crate) async fn keep_keys(&self, context: Context) -> RunnableResult {
        context.healthy();
        let mut progress = self.publisher.watch();
        let running = progress.wait_for(|progress| progress.state == State::Running);
        // The Manager holds the sender.
        let _ = context.unless_cancelled(running).await?;
        let mut orders = self.key_orders.receiver.lock().await;
        let mut lists = self.cold_start.keys.borrow().as_ref().map(|member| member.members.watch());
        let mut drilled = self.drilled.subscribe();
        let mut keeping = Keeping { look_at: Some(Instant::now()), ..Keeping::default() };
        let mut check_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                cancelled = context.cancelled() => return Err(cancelled.into()),
                Some(order) = orders.recv() => {
                    context.unless_cancelled(self.carry_out_order(&context, &mut keeping, order)).await?;
                }
                news = self.settings.access.news(&keeping.seen) => {
                    keeping.seen = news;
                    keeping.look_now();
                }
                () = changed(&mut lists) => keeping.look_now(),
                _ = drilled.changed() => {
                    let shown = keeping.memory.take_drilled(&drilled.borrow_and_update());
                    self.take_shown(&context, &mut keeping, shown);
                }
                () = at(keeping.look_at) => {
                    let with_cluster = keeping.seen.in_contact;
                    let settled = self.settle(&context, &mut keeping.memory, with_cluster);
                    let settled = context.unless_cancelled(settled).await?;
                    self.conclude(&context, &mut keeping, &settled);
                }
                () = at(keeping.rekey_deadline) => {
                    let reason = format!("the other members have not opened their shares yet: {}", self.drill_status());
                    keeping.answer(|is_begun| Err(order_error(is_begun, reason.clone())));
                }
                () = at(keeping.drilling.map(|(tell_at, _)| tell_at)) => {
                    if let Some((tell_at, has_copy)) = &mut keeping.drilling {
                        *tell_at = Instant::now() + DRILL_NEWS_INTERVAL;
                        self.tell_unverified(&context, *has_copy);
                    }
                }
                () = sleep_until(check_at) => {
                    let is_well = context.unless_cancelled(self.check_seal(&context)).await?;
                    check_at = Instant::now() + if is_well { SEAL_CHECK_INTERVAL } else { SEAL_RECHECK_INTERVAL };
                }
            }
        }
    }

    async fn carry_out_order(&self, context: &Context, keeping: &mut Keeping, order: KeyOrder) {
        // Whoever has asked may have gone; what was begun is done all the same.
        match order {
            KeyOrder::Rekey(reply) => {
                keeping.memory.is_rekey_asked = true;
                keeping.rekeys.push(reply);
                keeping.rekey_deadline = Some(Instant::now() + REKEY_PATIENCE);
                let settled = self.settle(context, &mut keeping.memory, true).await;
                self.conclude(context, keeping, &settled);
            }
            KeyOrder::Settle(reply) => {
                let settled = self.settle(context, &mut keeping.memory, true).await;
                self.conclude(context, keeping, &settled);
                let _ = reply.send(match settled {
                    // Whether shares are where they have to be is for the leader to judge, before it gives a vote.
                    Ok(_) | Err(SettleError::Split(_)) => Ok(()),
                    Err(error) => Err(order_error(!keeping.memory.is_rekey_asked, with_causes(&error))),
                });
            }
            KeyOrder::Reseal(reply) => {
                let _ = reply.send(self.reseal(context).await);
            }
        }
    }

    /// Draws the conclusions of a look at the keys.
    fn conclude(&self, context: &Context, keeping: &mut Keeping, settled: &Result<Settled, SettleError>) {
        keeping.look_at = None;
        match settled {
            Ok(Settled::InOrder) => {
                self.tell_order(context);
                self.tell_verified(context);
                keeping.drilling = None;
                keeping.pauses = Pauses::default();
                keeping.answer(|_| Ok(()));
            }
            Ok(Settled::NoKeys) => keeping.answer(|_| Err(KeyOrderError::NotEncrypted)),
            Ok(Settled::Drilling { has_copy }) => {
                self.tell_order(context);
                let tell_at = keeping.drilling.map_or_else(|| Instant::now() + DRILL_PATIENCE, |(tell_at, _)| tell_at);
                keeping.drilling = Some((tell_at, *has_copy));
            }
            // It is looked at again as soon as there is contact.
            Ok(Settled::WithoutCluster) => {
                let reason = with_causes(&SettleError::NoContact);
                keeping.answer(|is_begun| Err(order_error(is_begun, reason.clone())));
            }
            Err(error) => {
                self.tell_trouble(context, error, keeping.is_changing());
                let reason = with_causes(error);
                keeping.answer(|is_begun| Err(order_error(is_begun, reason.clone())));
                keeping.look_at = Some(Instant::now() + keeping.pauses.next(Pace::Soon, rand::random()));
            }
        }
    }

    fn take_shown(&self, context: &Context, keeping: &mut Keeping, shown: Shown) {
        match shown {
            Shown::Nothing => {}
            Shown::Verified => {
                tracing::info!("enough other members have opened their shares of this node's key, and they give it");
                keeping.look_now();
            }
            Shown::Failed { reason } => {
                tracing::error!(reason, "the shares of this node's key do not give it; it is split anew");
                self.tell_failed_drill(context, &reason);
                keeping.look_at = Some(Instant::now() + keeping.pauses.next(Pace::Refused, rand::random()));
            }
        }
    }

    fn drill_status(&self) -> String {
        self.cold_start.drilling.borrow().describe()
    }
}

impl Keeping {
    /// Has the keys looked at at once: what has failed before may go now.
    fn look_now(&mut self) {
        self.look_at = Some(Instant::now());
        self.pauses = Pauses::default();
    }

    /// Whether the key is being replaced.
    fn is_changing(&self) -> bool {
        self.memory.next.is_some()
    }

    /// Answers all who wait for a new key; `answer` is told whether the change has begun. One that has not is not begun any more.
    fn answer(&mut self, answer: impl Fn(bool) -> Result<(), KeyOrderError>) {
        self.rekey_deadline = None;
        if self.rekeys.is_empty() {
            return;
        }
        let is_begun = !std::mem::take(&mut self.memory.is_rekey_asked);
        for reply in self.rekeys.drain(..) {
            // Whoever has asked may have gone.
            let _ = reply.send(answer(is_begun));
        }
    }
}

fn order_error(is_begun: bool, reason: String) -> KeyOrderError {
    if is_begun { KeyOrderError::Unfinished { reason } } else { KeyOrderError::NotBegun { reason } }
}

/// Waits until this time; for ever without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for another value; for ever when there is nobody who could give one.
async fn changed<T>(values: &mut Option<watch::Receiver<T>>) {
    let is_changed = match values {
        Some(values) => values.changed().await.is_ok(),
        None => false,
    };
    if !is_changed {
        std::future::pending().await
    }
}
