//! [`Snapshots`]: the runnable that takes, checks and keeps snapshots.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use polis_condition::{Conditions, Severity};
use polis_consensus::{Consensus, Status};
use polis_storage::{Disk, Layout};
use polis_supervisor::{Context, RunnableResult, with_causes};
use rand::RngExt as _;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::name::SnapshotName;
use crate::retention::expired;
use crate::take::{Fresh, Place, TakeError, take};
use crate::tool::RestoreTool;

/// Time between two snapshots: what an operator would lose at most who has nothing else, and a thousandth of a disk's time for a
/// database of a hundred MiB.
pub const PERIOD: Duration = Duration::from_secs(3600);

/// How long after the member works the first one is taken, if the last is older than a period: when the start and what follows it are
/// over, which have better uses for the disk, and soon enough for who has nothing else.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// Part by which every pause differs at random, so that members that were started together do not all read their disks at once.
const JITTER: f64 = 0.2;

/// Periods after which the newest snapshot counts as old: two may fail for a reason that passes.
pub const OLD_AFTER_PERIODS: u32 = 3;

/// Orders of operators that wait: one is taken at a time, and more than these are not worth waiting for.
const ORDERS: usize = 4;

/// Name of the condition that is raised while snapshots cannot be taken.
pub(crate) const FAILING: &str = "snapshots-failing";
/// Name of the condition that is raised while the newest snapshot is old, or there is none.
pub(crate) const OLD: &str = "snapshots-old";
/// Name of the condition that is raised while snapshots cannot be restored for trial.
pub(crate) const UNTRIED: &str = "snapshots-untried";

/// When snapshots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between two.
    pub period: Duration,
    /// Time from when the member works to the first.
    pub first_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { period: PERIOD, first_after: FIRST_AFTER }
    }
}

/// What a keeper of snapshots is made of.
pub struct Settings {
    /// The disk of the node.
    pub disk: Arc<dyn Disk>,
    /// The consensus member, while there is one.
    pub member: watch::Receiver<Option<Consensus>>,
    /// The etcd program: the tool that restores is looked for beside it.
    pub etcd: PathBuf,
    /// Where else the tool may be: the value of `PATH`.
    pub search_path: Option<OsString>,
    /// When they are taken.
    pub timing: Timing,
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The newest snapshot.
    pub newest: Option<SnapshotName>,
    /// How many are kept.
    pub kept: usize,
    /// Whether the newest was restored for trial in this life of the node.
    pub tried: bool,
}

/// Somebody who waits for a snapshot of what is now.
type Order = oneshot::Sender<Result<Fresh, OrderError>>;

/// No snapshot was taken for somebody who asked for one.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// There is nothing to take it of.
    #[error(
        "this node has no consensus member that works at the moment, so that there is nothing to take a snapshot of"
    )]
    NoMember,
    /// Others wait already.
    #[error("{ORDERS} others wait for a snapshot of this node already")]
    Busy,
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// It was not taken.
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// Takes and keeps snapshots. Clones are the same.
#[derive(Clone)]
pub struct Snapshots(Arc<Inner>);

struct Inner {
    settings: Settings,
    place: Place,
    state: watch::Sender<State>,
    orders: mpsc::Sender<Order>,
    /// Held by the life of the runnable that takes them.
    ordered: Mutex<mpsc::Receiver<Order>>,
}

impl Snapshots {
    /// Prepares a keeper; nothing runs yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let directory = Layout::new(Arc::clone(&settings.disk)).data.snapshots;
        let place = Place { disk: Arc::clone(&settings.disk), directory };
        let (orders, ordered) = mpsc::channel(ORDERS);
        Self(Arc::new(Inner { settings, place, state: watch::Sender::default(), orders, ordered: Mutex::new(ordered) }))
    }

    /// Takes a snapshot of what is now, checked and kept like any other, and opens it.
    ///
    /// # Errors
    ///
    /// When none was taken.
    pub async fn take_now(&self) -> Result<Fresh, OrderError> {
        let (order, taken) = oneshot::channel();
        self.0.orders.try_send(order).map_err(|_| OrderError::Busy)?;
        taken.await.unwrap_or(Err(OrderError::Stopping))
    }

    /// What there is, once the member has worked in this life of the node.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }

    /// Runs until it is cancelled.
    ///
    /// # Errors
    ///
    /// When it is cancelled; what goes wrong is a condition, and is tried again.
    pub async fn run(self, context: Context) -> RunnableResult {
        context.healthy();
        let result = context.unless_cancelled(self.keep(&context)).await;
        [FAILING, OLD, UNTRIED].iter().for_each(|name| context.conditions().clear(name));
        result?
    }

    async fn keep(&self, context: &Context) -> RunnableResult {
        let Settings { timing, member, .. } = &self.0.settings;
        let mut ordered = self.0.ordered.lock().await;
        let mut member = member.clone();
        let mut pause = timing.first_after;
        let began = Instant::now();
        loop {
            let consensus = tokio::select! {
                // A member that works is noticed before somebody is told that there is none.
                biased;
                consensus = ready(&mut member) => consensus,
                Some(order) = ordered.recv() => {
                    // Who asked may be gone.
                    let _ = order.send(Err(OrderError::NoMember));
                    continue;
                }
            };
            let due = Instant::now() + with_jitter(pause);
            let order = tokio::select! {
                () = sleep_until(due) => None,
                Some(order) = ordered.recv() => Some(order),
            };
            if let Some(order) = order {
                let taken = self.for_order(&consensus, context).await;
                pause = if taken.is_ok() { timing.period } else { due.saturating_duration_since(Instant::now()) };
                let _ = order.send(taken);
            } else if !consensus.status().borrow().is_ready() {
                // Of a member that learns, or has no quorum, there is nothing new.
                pause = timing.first_after;
            } else {
                match self.once(&consensus, context).await {
                    Ok(next) => {
                        context.conditions().clear(FAILING);
                        pause = next;
                    }
                    Err(error) => {
                        say_failing(context.conditions(), &error);
                        pause = timing.period / 4;
                    }
                }
            }
            self.judge_age(context.conditions(), began);
        }
    }

    /// Takes one because somebody wants it, and opens it before anybody could remove it.
    async fn for_order(&self, consensus: &Consensus, context: &Context) -> Result<Fresh, OrderError> {
        if !consensus.status().borrow().is_ready() {
            return Err(OrderError::NoMember);
        }
        let place = self.0.place.clone();
        let names = context
            .blocking(move || {
                place.prepare()?;
                place.list()
            })
            .await;
        let newest = names.map_err(TakeError::Disk)?.last().copied();
        let name = self.take(consensus, newest, context).await?;
        context.conditions().clear(FAILING);
        let place = self.0.place.clone();
        Ok(context.blocking(move || place.open(name)).await?)
    }

    /// Takes one if it is time, and returns how long to wait for the next.
    async fn once(&self, consensus: &Consensus, context: &Context) -> Result<Duration, TakeError> {
        let period = self.0.settings.timing.period;
        let place = self.0.place.clone();
        let names = context
            .blocking(move || {
                place.prepare()?;
                place.list()
            })
            .await?;
        let now = Timestamp::now();
        let newest = names.last().copied();
        let age = newest.map(|newest| Duration::from_secs(newest.age(now)));
        if let (Some(newest), Some(age)) = (newest, age.filter(|age| *age < period * 4 / 5)) {
            self.publish(newest, names.len(), None);
            return Ok(period.saturating_sub(age));
        }
        self.take(consensus, newest, context).await?;
        Ok(period)
    }

    /// Takes one; if nothing has changed since the newest, that gets another name.
    async fn take(
        &self,
        consensus: &Consensus,
        newest: Option<SnapshotName>,
        context: &Context,
    ) -> Result<SnapshotName, TakeError> {
        let now = Timestamp::now();
        let revision = consensus.snapshot().await?.revision;
        let (name, tried) = match newest.filter(|newest| newest.revision == revision) {
            Some(newest) => {
                let name = SnapshotName { seconds: now.as_second().max(0), revision };
                let place = self.0.place.clone();
                context.blocking(move || place.rename(newest, name)).await?;
                (name, None)
            }
            None => {
                let tool = RestoreTool::find(&self.0.settings.etcd, self.0.settings.search_path.as_deref());
                say_untried(context.conditions(), tool.is_none());
                let began = Instant::now();
                let name = take(&self.0.place, consensus, tool.as_ref(), now, context).await?;
                tracing::info!(
                    "a snapshot of the cluster's state at revision {} was taken and checked in {} ms",
                    name.revision,
                    began.elapsed().as_millis()
                );
                (name, Some(tool.is_some()))
            }
        };
        let place = self.0.place.clone();
        let kept = context
            .blocking(move || {
                for old in expired(place.list()?, now) {
                    place.remove(old)?;
                }
                place.list()
            })
            .await?;
        self.publish(name, kept.len(), tried);
        Ok(name)
    }

    /// Publishes what there is. Without `tried` that stays as it was; it is taken from what is known here, since a caller that borrowed
    /// it for this call would wait for itself.
    fn publish(&self, newest: SnapshotName, kept: usize, tried: Option<bool>) {
        self.0.state.send_if_modified(|known| {
            let state = State { newest: Some(newest), kept, tried: tried.unwrap_or(known.tried) };
            std::mem::replace(known, state) != state
        });
    }

    /// Raises or clears the condition about the age of the newest snapshot.
    fn judge_age(&self, conditions: &Conditions, began: Instant) {
        let limit = self.0.settings.timing.period * OLD_AFTER_PERIODS;
        let newest = self.0.state.borrow().newest;
        let message = match newest.map(|newest| Duration::from_secs(newest.age(Timestamp::now()))) {
            Some(age) if age < limit => None,
            None if began.elapsed() < limit => None,
            Some(age) => Some(format!(
                "the newest snapshot of the cluster's state on this node is {} minutes old, and they should be taken every {}",
                age.as_secs() / 60,
                self.0.settings.timing.period.as_secs() / 60
            )),
            None => Some("there is no snapshot of the cluster's state on this node".to_owned()),
        };
        match message {
            None => conditions.clear(OLD),
            Some(message) => conditions.raise(
                OLD,
                Severity::Warning,
                message,
                "See what `snapshots-failing` or the condition of the consensus member says. `polis cluster health` shows the others.",
            ),
        }
    }
}

/// The member, once it works.
async fn ready(member: &mut watch::Receiver<Option<Consensus>>) -> Consensus {
    loop {
        let Ok(found) = member.wait_for(Option::is_some).await.map(|found| found.clone()) else {
            // Nobody sets it any more.
            return std::future::pending().await;
        };
        let Some(consensus) = found else { continue };
        let mut status = consensus.status();
        let another = async {
            if member.changed().await.is_err() {
                // There will be no other.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            is_ready = async { status.wait_for(Status::is_ready).await.is_ok() } => if is_ready {
                return consensus;
            },
            () = another => {}
        }
    }
}

fn with_jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(1.0 - JITTER..=1.0 + JITTER))
}

fn say_failing(conditions: &Conditions, error: &TakeError) {
    conditions.raise(
        FAILING,
        Severity::Warning,
        format!("no snapshot of the cluster's state could be taken on this node: {}", with_causes(error)),
        "Cure what the message names; it is tried again by itself. Those that are there stay.",
    );
}

fn say_untried(conditions: &Conditions, is_untried: bool) {
    if is_untried {
        conditions.raise(
            UNTRIED,
            Severity::Info,
            "snapshots of the cluster's state are checked by their hash only: neither etcdutl nor etcdctl is there, with which they \
             would be restored once for trial",
            "Install the Debian package etcd-client, or run `scripts/setup run`, which unpacks it beside etcd.",
        );
    } else {
        conditions.clear(UNTRIED);
    }
}
