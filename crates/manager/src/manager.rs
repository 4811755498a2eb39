//! The Manager itself: one object with a state, run as a runnable, safe to ask from anywhere.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use polis_condition::Severity;
use polis_storage::data::ProgressSender;
use polis_storage::journal::PlainSeal;
use polis_storage::{DataPartition, Disk, Journal, JournalStore, Layout};
use polis_supervisor::{Context, RunnableResult, SharedRunnable, runnable};
use tokio::sync::watch;

use crate::consensus::ConsensusProvider;
use crate::create_cluster::Begun;
use crate::decision::{Decision, decide};
use crate::failure::Failure;
use crate::node::Node;
use crate::parameter_source::ParameterSource;
use crate::progress::{Outcome, Progress, Publisher, wait_finished};
use crate::state::State;
use crate::trouble::Ended;

/// What a Manager works with.
pub struct Settings {
    /// Disk of the node, rooted at its root directory.
    pub disk: Arc<dyn Disk>,
    /// Data partition of the node.
    pub data: Arc<dyn DataPartition>,
    /// Address of the node; absent while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Where parameters come from.
    pub parameters: ParameterSource,
    /// Whether the machine has a TPM.
    pub tpm_present: bool,
}

/// Takes the node from New to Running. Clones are the same Manager.
pub struct Manager<C: ConsensusProvider>(Arc<Inner<C>>);

pub(crate) struct Inner<C: ConsensusProvider> {
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    pub(crate) journal: JournalStore,
    pub(crate) consensus: C,
    pub(crate) publisher: Publisher,
    /// The consensus member of the present life of the Manager.
    pub(crate) member: Mutex<Option<C::Member>>,
    /// How far the work on the data partition is.
    pub(crate) data_progress: ProgressSender,
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
        let journal = layout.journal_store(Arc::new(PlainSeal));
        let (publisher, member, data_progress) = (Publisher::new(), Mutex::new(None), ProgressSender::default());
        Self(Arc::new(Inner { settings, layout, journal, consensus, publisher, member, data_progress }))
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

    /// The consensus member, while the node runs and has one.
    #[must_use]
    pub fn consensus_member(&self) -> Option<C::Member> {
        let runs = self.state() == State::Running;
        runs.then(|| self.0.member.lock().unwrap_or_else(PoisonError::into_inner).clone()).flatten()
    }

    /// The consensus member as soon as it is started, for showing how it fares.
    #[must_use]
    pub fn starting_member(&self) -> Option<C::Member> {
        self.0.member.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable. A life that ends in a panic is followed by another, which goes on from what is durable, in the
    /// state that the Manager has.
    async fn run(&self, context: Context) -> RunnableResult {
        if self.publisher.state() == State::Failed {
            context.healthy();
            context.done();
            return Ok(());
        }
        match self.enrol(&context).await {
            Ok(()) => {
                context.healthy();
                Err(context.cancelled().await.into())
            }
            Err(Ended::Cancelled) => Err(context.cancelled().await.into()),
            Err(Ended::Failed(failure)) => {
                self.publisher.fail(failure);
                context.healthy();
                context.done();
                Ok(())
            }
        }
    }

    async fn enrol(&self, context: &Context) -> Result<(), Ended> {
        let journal = self.load_journal(context).await?;
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
        let store = self.journal.clone();
        let Some(loaded) = self.on_disk(context, move || store.load()).await? else {
            return Ok(None);
        };
        let journal = loaded.value;
        self.publisher.record(&journal);
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
            self.store_journal(context, &journal, "journal/mend").await?;
        }
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
        self.publisher.record(journal);
        Ok(())
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
