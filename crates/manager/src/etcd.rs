//! The consensus member of a real node: etcd, as the control plane runs it.

use std::sync::Arc;

use async_trait::async_trait;
use polis_consensus::{Consensus, KvError, NameError, Namespaced, Phase, Start, Transaction};
use polis_curator::{ClusterStore, Creation, Entry, StoreError};
use polis_roleserve::{ControlPlane, MemberSettings as ControlPlaneMember};
use polis_supervisor::{BoxError, Context};

use crate::consensus::{ConsensusProvider, MemberSettings, WithoutData};
use crate::manager::Manager;

/// Has the control plane run etcd as this node's consensus member.
pub struct EtcdProvider(ControlPlane);

impl EtcdProvider {
    /// The provider whose members `control_plane` runs.
    #[must_use]
    pub const fn new(control_plane: ControlPlane) -> Self {
        Self(control_plane)
    }
}

#[async_trait]
impl ConsensusProvider for EtcdProvider {
    type Member = Consensus;

    async fn start(&self, context: &Context, settings: MemberSettings) -> Result<Consensus, BoxError> {
        let MemberSettings { credentials, public_key, without_data } = settings;
        let start = match without_data {
            WithoutData::Found => Start::Found,
            WithoutData::Refuse => Start::Existing,
        };
        let control_plane = self.0.clone();
        let settings = ControlPlaneMember { credentials, public_key, start };
        Ok(context.blocking(move || control_plane.start_member(settings)).await?)
    }

    async fn ready(&self, member: &Consensus) {
        member.ready().await;
    }

    async fn without_vote(&self, member: &Consensus) {
        let (mut status, mut current) = (member.status(), self.0.member());
        // Both senders live as long as the two handles here do.
        tokio::select! {
            _ = status.wait_for(|status| matches!(status.phase, Phase::Learner | Phase::Removed)) => {}
            _ = current.wait_for(Option::is_none) => {}
        }
    }

    fn member(&self) -> Option<Consensus> {
        self.0.member().borrow().clone()
    }

    async fn suspend(&self) {
        self.0.suspend().await;
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn store(&self, member: &Consensus) -> Arc<dyn ClusterStore> {
        Arc::new(EtcdStore(member.kv_root()))
    }
}

/// The whole key space of etcd as the store of the cluster's state.
struct EtcdStore(Namespaced);

#[async_trait]
impl ClusterStore for EtcdStore {
    async fn create(&self, site: &'static str, entries: Vec<Entry>) -> Result<Creation, StoreError> {
        let transaction = entries.into_iter().fold(Transaction::new(), |transaction, Entry { key, value }| {
            transaction.if_absent(key.clone()).put(key, value)
        });
        match self.0.transact(site, transaction).await {
            Ok(_) => Ok(Creation::Created),
            Err(KvError::PreconditionFailed { .. }) => Ok(Creation::Exists),
            Err(error) => Err(failed("a transaction", error)),
        }
    }

    async fn put(&self, site: &'static str, entry: Entry) -> Result<(), StoreError> {
        self.0.put(site, entry.key, entry.value).await.map(|_| ()).map_err(|error| failed("a write", error))
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.0.get(key).await.map_err(|error| failed("a read", error))?;
        Ok(found.map(|found| found.value))
    }
}

fn failed(operation: &'static str, error: KvError) -> StoreError {
    StoreError { operation, source: error.into() }
}

impl Manager<EtcdProvider> {
    /// Keys and values of a module, in a namespace of its own; only while the node runs and is a consensus member.
    ///
    /// # Errors
    ///
    /// When a name cannot be part of a namespace.
    pub fn consensus_kv(&self, module: &str, space: &str) -> Result<Option<Namespaced>, NameError> {
        self.consensus_member().map(|member| member.namespaced(&[module, space])).transpose()
    }
}
