//! The Manager itself: one object with a state, run as a runnable, safe to ask from anywhere.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use polis_condition::Severity;
use polis_identity::NodeId;
use polis_roleserve::{Identity, SplitState};
use polis_storage::data::{DataError, ProgressSender};
use polis_storage::journal::{Phase, SealKind, Seals};
use polis_storage::{DataBackends, Disk, Journal, JournalStore, Layout};
use polis_supervisor::{Context, RunnableResult, SharedRunnable, runnable};
use polis_unlock_service::{Contacts, Drilled, Exercise, KnownAddresses, Lock, Members, UnlockStatus};
use tokio::sync::watch;

use crate::cluster_access::ClusterAccess;
use crate::cold_start::{ColdStartState, MemberKeys};
use crate::consensus::ConsensusProvider;
use crate::create_cluster::Begun;
use crate::data::Opened;
use crate::decision::{Decision, decide};
use crate::ending::{Orders, is_erased};
use crate::failure::Failure;
use crate::gate::Gate;
use crate::node::Node;
use crate::parameter_source::ParameterSource;
use crate::progress::{Outcome, Progress, Publisher, wait_finished};
use crate::recovery::Recovering;
use crate::register::RegistrationBegun;
use crate::state::State;
use crate::trouble::Ended;
use crate::unlock_keys::{KeyOrder, KeyOrderError, KeyOrders};

/// What a Manager works with.
pub struct Settings {
    /// Disk of the node, rooted at its root directory.
    pub disk: Arc<dyn Disk>,
    /// Backends for its data partition.
    pub backends: Arc<dyn DataBackends>,
    /// Seals of the machine.
    pub seals: Seals,
    /// Address of the node; absent while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Where parameters come from.
    pub parameters: ParameterSource,
    /// The way to a cluster that others run.
    pub access: Arc<dyn ClusterAccess>,
    /// Where an operator says that nodes are.
    pub peers: watch::Receiver<Vec<(NodeId, IpAddr)>>,
}

/// Takes the node from New to Running. Clones are the same Manager.
pub struct Manager<C: ConsensusProvider>(Arc<Inner<C>>);

pub(crate) struct Inner<C: ConsensusProvider> {
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    pub(crate) journal: JournalStore,
    pub(crate) consensus: C,
    pub(crate) publisher: Publisher,
    /// What the enrolment does to the disk passes through here.
    pub(crate) gate: Gate,
    /// What has been ordered about the end of the membership.
    pub(crate) orders: watch::Sender<Orders>,
    /// Whether the keys are erased, since this start.
    pub(crate) erased: watch::Sender<bool>,
    /// How far the work on the data partition is.
    pub(crate) data_progress: ProgressSender,
    /// The data partition, while it is open.
    pub(crate) opened: watch::Sender<Option<Opened>>,
    /// What operators ask about the keys of the node.
    pub(crate) key_orders: KeyOrders,
    /// What the recovery key of the cluster needs and gives.
    pub(crate) recovery: Recovering,
    /// What unlocking by the other members needs and tells.
    pub(crate) cold_start: ColdStartState,
    /// The split of the key that is to be tried; absent while there is none. Set by whoever keeps the keys.
    pub(crate) exercise: watch::Sender<Option<Exercise>>,
    /// How far it has been tried. Set by the drills.
    pub(crate) drilled: watch::Sender<Drilled>,
    /// How the key is split, for the cluster; absent while it is not. Set by whoever keeps the keys.
    pub(crate) split: watch::Sender<Option<SplitState>>,
    /// Whether the node has registered since this start, so that what it has of its keys has only just been made.
    pub(crate) has_registered: AtomicBool,
}

impl<C: ConsensusProvider> Clone for Manager<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: ConsensusProvider> Manager<C> {
    /// Makes a Manager in the state New.
    #[must_use]
    pub fn new(settings: Settings, consensus: C) -> Self {
        let layout = Layout::new(settings.disk.clone());
        let journal = layout.journal_store(settings.seals.clone());
        Self(Arc::new(Inner {
            settings,
            layout,
            journal,
            consensus,
            publisher: Publisher::new(),
            gate: Gate::default(),
            orders: watch::Sender::new(Orders::default()),
            erased: watch::Sender::new(false),
            data_progress: ProgressSender::default(),
            opened: watch::Sender::new(None),
            key_orders: KeyOrders::new(),
            recovery: Recovering::new(),
            cold_start: ColdStartState::new(),
            exercise: watch::Sender::new(None),
            drilled: watch::Sender::default(),
            split: watch::Sender::new(None),
            has_registered: AtomicBool::new(false),
        }))
    }

    pub(crate) fn inner(&self) -> &Inner<C> {
        &self.0
    }

    /// The runnable that does the work. It is healthy once the node runs, and done once it has failed.
    #[must_use]
    pub fn runnable(&self) -> SharedRunnable {
        let inner = self.0.clone();
        runnable(move |context| {
            let inner = inner.clone();
            async move { inner.run(context).await }
        })
    }

    /// The runnable that looks after the keys of the data partition once the node runs.
    #[must_use]
    pub fn key_keeper(&self) -> SharedRunnable {
        let inner = self.0.clone();
        runnable(move |context| {
            let inner = inner.clone();
            async move { inner.keep_keys(context).await }
        })
    }

    /// The runnable that tries, for each split of the key, whether the members would open this node. They are looked for at these
    /// addresses, beside those that the member list names.
    #[must_use]
    pub fn drills(&self, addresses: watch::Receiver<Arc<KnownAddresses>>) -> SharedRunnable {
        let inner = self.0.clone();
        runnable(move |context| {
            let (inner, addresses) = (inner.clone(), addresses.clone());
            async move { inner.run_drills(context, addresses).await }
        })
    }

    /// Replaces the cluster's half of the key of the data partition. Returns when the old one opens nothing any more. It takes the
    /// runnable for that.
    ///
    /// # Errors
    ///
    /// See [`KeyOrderError`].
    pub async fn rekey(&self) -> Result<(), KeyOrderError> {
        self.0.key_orders.give(KeyOrder::Rekey).await
    }

    /// Binds the seal of the node's keys to the present state of the machine, and returns its kind. It takes the runnable for that.
    ///
    /// # Errors
    ///
    /// See [`KeyOrderError`].
    pub async fn reseal(&self) -> Result<SealKind, KeyOrderError> {
        self.0.key_orders.give(KeyOrder::Reseal).await
    }

    /// Brings the key of the data partition into order for the present members of the cluster, as the runnable does by itself when
    /// it hears of a change. When this returns, a node that has to open its data alone can, also after a power cut.
    ///
    /// # Errors
    ///
    /// See [`KeyOrderError`].
    pub async fn settle_key(&self) -> Result<(), KeyOrderError> {
        self.0.key_orders.give(KeyOrder::Settle).await
    }

    /// Closes the data partition. Nothing of the node may run any more.
    ///
    /// # Errors
    ///
    /// When the backend fails; the next start clears what is left.
    pub async fn close_data(&self) -> Result<(), DataError> {
        match self.0.opened.send_replace(None) {
            Some(Opened { partition, .. }) => partition.close().await,
            None => Ok(()),
        }
    }

    /// Where the Manager stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.0.publisher.state()
    }

    /// A receiver that wakes on every change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.0.publisher.watch()
    }

    /// Waits until the node runs or has failed; returns at once when it does or has.
    pub async fn wait_finished(&self) -> Outcome {
        wait_finished(self.watch()).await
    }

    /// The node, while it runs.
    #[must_use]
    pub fn node(&self) -> Option<Arc<Node>> {
        self.watch().borrow().node.clone()
    }

    /// What the node proves itself with to its cluster, as soon as it has that, which is before it runs.
    #[must_use]
    pub fn identity(&self) -> watch::Receiver<Option<Arc<Identity>>> {
        self.0.publisher.identity()
    }

    /// What the node knows of the members of its cluster, once it belongs to one, and in every later start.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Option<Members>> {
        self.0.cold_start.members.subscribe()
    }

    /// The same with the keys by which the members know this node.
    #[must_use]
    pub fn member_keys(&self) -> watch::Receiver<Option<Arc<MemberKeys>>> {
        self.0.cold_start.keys.subscribe()
    }

    /// Whether the data are locked.
    #[must_use]
    pub fn lock(&self) -> watch::Receiver<Lock> {
        self.0.cold_start.lock.subscribe()
    }

    /// How far the node is on its way to being open, while it is locked.
    #[must_use]
    pub fn unlock_status(&self) -> watch::Receiver<Arc<UnlockStatus>> {
        self.0.cold_start.unlocking.subscribe()
    }

    /// Where it is noted which members have called on the unlock port.
    #[must_use]
    pub fn contacts(&self) -> Contacts {
        self.0.cold_start.contacts.clone()
    }

    /// How the key of the data is split among the members; `None` while it is not.
    #[must_use]
    pub fn split(&self) -> watch::Receiver<Option<SplitState>> {
        self.0.split.subscribe()
    }

    /// Whether the members would open this node, as far as that was tried.
    #[must_use]
    pub fn drilled(&self) -> watch::Receiver<Drilled> {
        self.0.drilled.subscribe()
    }

    /// The consensus member, while the node runs and has one.
    #[must_use]
    pub fn consensus_member(&self) -> Option<C::Member> {
        if self.state() == State::Running { self.0.consensus.member() } else { None }
    }

    /// The cluster has removed the node, which has been proved. In whatever state the node is, its journal records that, and then
    /// it fails with this reason. Returns at once; may be called again, and the first reason stays.
    pub fn remove(&self, reason: impl Into<String>) {
        self.0.order(reason.into(), |orders| orders.stop = true);
    }

    /// Erases all key material of the node, as the last but one step of its decommissioning: from the journal first, which records
    /// the reason, then all files. Returns when that is durable. The node goes on with what it has in its memory, so that it can
    /// report this, until [`Manager::remove`] ends it. If it is cut off, a later start finishes it.
    pub async fn erase_keys(&self, reason: impl Into<String>) {
        let mut erased = self.0.erased.subscribe();
        self.0.order(reason.into(), |orders| orders.erase = true);
        // This handle holds the sender.
        let _ = erased.wait_for(|erased| *erased).await;
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable. A life that ends in a panic is followed by another, which goes on from what is durable, in the
    /// state that the Manager has.
    async fn run(&self, context: Context) -> RunnableResult {
        let _of_this_life = self.cold_start.of_this_life();
        if self.publisher.state() == State::Failed {
            context.healthy();
            context.done();
            return Ok(());
        }
        let mut healthy = false;
        let ended = match self.until_ordered(self.live(&context, &mut healthy)).await {
            // What the enrolment itself has found out.
            Some(Ended::Failed(Failure::Removed { reason })) if !self.publisher.has_recorded_removal() => {
                self.order(reason, |orders| orders.stop = true);
                self.end_membership(&context).await
            }
            Some(ended) => Err(ended),
            None => self.end_membership(&context).await,
        };
        match ended {
            // Being a node of a cluster has no end but those below, and an order is one of them.
            Ok(()) | Err(Ended::Cancelled) => Err(context.cancelled().await.into()),
            Err(Ended::Failed(failure)) => {
                self.publisher.fail(failure);
                if !healthy {
                    context.healthy();
                }
                context.done();
                Ok(())
            }
        }
    }

    fn order(&self, reason: String, order: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(|orders| {
            orders.reason.get_or_insert(reason);
            order(orders);
        });
    }

    /// Lives until the data partition is lost, and then again: what is left to do follows from what is durable, and what goes on is
    /// found again.
    async fn live(&self, context: &Context, healthy: &mut bool) -> Ended {
        loop {
            let reason = tokio::select! {
                biased;
                reason = self.data_lost() => reason,
                ended = self.live_on_data(context, healthy) => return ended,
            };
            if let Err(ended) = self.give_up_data(context, &reason).await {
                return ended;
            }
        }
    }

    /// Enrols, and then is a node, until that ends.
    async fn live_on_data(&self, context: &Context, healthy: &mut bool) -> Ended {
        match self.enrol(context).await {
            Ok(()) => {
                if !std::mem::replace(healthy, true) {
                    context.healthy();
                }
                context.cancelled().await.into()
            }
            Err(Ended::Cancelled) => Ended::Cancelled,
            Err(Ended::Failed(failure)) => Ended::Failed(failure),
        }
    }

    /// The outcome of `life`; nothing if the end of the membership is ordered before.
    async fn until_ordered(&self, life: impl Future<Output = Ended>) -> Option<Ended> {
        let mut orders = self.orders.subscribe();
        tokio::select! {
            biased;
            _ = orders.wait_for(|orders| orders.reason.is_some()) => None,
            ended = life => Some(ended),
        }
    }

    async fn enrol(&self, context: &Context) -> Result<(), Ended> {
        let journal = self.load_journal(context).await?;
        if let Some(journal) = &journal {
            self.finish_erasing(context, journal).await?;
        }
        match decide(journal, || self.settings.parameters.read())? {
            Decision::Bootstrap(bootstrap, parameters) => {
                self.enter(State::CreatingCluster)?;
                self.create_cluster(context, &bootstrap, Begun::Now { parameters }).await
            }
            Decision::ResumeBootstrap(bootstrap, journal) => {
                self.enter(State::CreatingCluster)?;
                tracing::info!(phase = %journal.phase(), "an earlier start was cut off; going on from here");
                self.create_cluster(context, &bootstrap, Begun::Before { journal }).await
            }
            Decision::Register(register, parameters) => {
                self.enter(State::Registering)?;
                self.register(context, &register, RegistrationBegun::Now { parameters }).await
            }
            Decision::ResumeRegister(register, journal, new) => {
                self.enter(State::Registering)?;
                tracing::info!(phase = %journal.phase(), "an earlier start was cut off; going on from here");
                self.register(context, &register, RegistrationBegun::Before { journal, new }).await
            }
            Decision::Join(journal) => {
                self.enter(State::Joining)?;
                self.join(context, *journal).await
            }
        }
    }

    /// Goes to the state in which the decided work is done. A later life of the runnable goes on in the state of the earlier one:
    /// one that died while it created a cluster may find that it is a member.
    fn enter(&self, state: State) -> Result<(), Ended> {
        if self.publisher.state() != State::New {
            return Ok(());
        }
        self.publisher.enter(state).map_err(|_| Ended::Failed(Failure::Gone))
    }

    async fn load_journal(&self, context: &Context) -> Result<Option<Journal>, Ended> {
        let Some(loaded) = self.load_or_recover(context).await? else { return Ok(None) };
        let journal = loaded.value;
        self.record(&journal);
        if let Some(fault) = loaded.fault {
            tracing::warn!(%fault, "one of the two generations of the journal is damaged; the other is whole and is used");
            context.conditions().raise(
                "journal-generation-damaged",
                Severity::Warning,
                format!(
                    "one of the two generations of the enrolment journal was damaged and has been written anew: {fault}"
                ),
                "nothing is lost; look at the disk, since a second fault of this kind could cost the node its identity",
            );
            let store = self.journal.clone();
            self.on_disk(context, move || match store.load()? {
                // As it is now: what is known of the members may have been written since.
                Some(newest) => store.store(&newest.value, "journal/mend"),
                None => Ok(()),
            })
            .await?;
        }
        self.forget_older_journal(context, &journal).await?;
        self.know_members(context, &journal).await?;
        Ok(Some(journal))
    }

    /// Makes a generation of the journal durable. What it says holds from here on, whatever happens.
    pub(crate) async fn store_journal(
        &self,
        context: &Context,
        journal: &Journal,
        site: &'static str,
    ) -> Result<(), Ended> {
        let (store, next) = (self.journal.clone(), journal.clone());
        self.on_disk(context, move || store.store(&next, site)).await?;
        self.record(journal);
        Ok(())
    }

    /// The same in both generations: nothing of an earlier journal is left then.
    pub(crate) async fn store_journal_twice(
        &self,
        context: &Context,
        journal: &Journal,
        site: &'static str,
    ) -> Result<(), Ended> {
        let (store, next) = (self.journal.clone(), journal.clone());
        self.on_disk(context, move || store.store_both(&next, site)).await?;
        self.record(journal);
        Ok(())
    }

    /// Finishes what an earlier life may have begun: a member's journal holds nothing in its older generation that was taken out, such
    /// as the node key. A change of the key that is under way needs nothing of that.
    async fn forget_older_journal(&self, context: &Context, journal: &Journal) -> Result<(), Ended> {
        match journal.phase() {
            Phase::Enrolled => {}
            Phase::Removed { .. } if is_erased(journal) => {}
            // Of one that was removed nothing changes any more.
            Phase::Formattable | Phase::Formatted | Phase::Removed { .. } => return Ok(()),
        }
        let (store, newest) = (self.journal.clone(), journal.clone());
        // In a later life of the runnable, what is known of the members may have been written since.
        let is_first_life = self.cold_start.keys.borrow().is_none();
        self.on_disk(context, move || {
            let newer = if is_first_life { None } else { store.load()? };
            let newest = newer.map_or_else(|| newest.clone(), |newer| newer.value);
            store.unify(&newest, "journal/unify").map(|_| ())
        })
        .await
    }

    /// Tells everybody what the journal says.
    pub(crate) fn record(&self, journal: &Journal) {
        self.publisher.record(journal, self.journal.seal_kind());
        self.recovery.note(journal);
    }

    /// Waits until the node has an address; the network raises the condition that says so.
    pub(crate) async fn wait_for_address(&self, context: &Context) -> Result<IpAddr, Ended> {
        let mut address = self.settings.address.clone();
        let wait = async {
            loop {
                if let Some(address) = *address.borrow_and_update() {
                    return Some(address);
                }
                if address.changed().await.is_err() {
                    return None;
                }
            }
        };
        context.unless_cancelled(wait).await?.ok_or(Ended::Failed(Failure::Gone))
    }
}
