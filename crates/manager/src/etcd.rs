//! The consensus member of a real node: etcd.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use polis_consensus::{
    Configuration, Consensus, EtcdBinary, KvError, Membership, NameError, Namespaced, Start, Timing, Transaction,
};
use polis_curator::{ClusterStore, Creation, Entry, StoreError};
use polis_storage::Disk;
use polis_supervisor::{BoxError, Context};
use tokio::sync::watch;

use crate::consensus::{ConsensusProvider, MemberSettings, WithoutData};
use crate::manager::Manager;

/// Starts etcd as this node's consensus member.
pub struct EtcdProvider {
    etcd: EtcdBinary,
    disk: Arc<dyn Disk>,
    address: watch::Receiver<Option<IpAddr>>,
}

impl EtcdProvider {
    /// Prepares for running `etcd` with data on `disk`, for peers that reach this node at `address`.
    #[must_use]
    pub fn new(etcd: EtcdBinary, disk: Arc<dyn Disk>, address: watch::Receiver<Option<IpAddr>>) -> Self {
        Self { etcd, disk, address }
    }
}

#[async_trait]
impl ConsensusProvider for EtcdProvider {
    type Member = Consensus;

    fn start(&self, context: &Context, settings: MemberSettings) -> Result<Consensus, BoxError> {
        let consensus = Consensus::new(Configuration {
            etcd: self.etcd.clone(),
            public_key: settings.public_key,
            pki: settings.credentials,
            address: self.address.clone(),
            disk: self.disk.clone(),
            start: match settings.without_data {
                WithoutData::Found => Start::Found,
                WithoutData::Refuse => Start::Existing,
            },
            // A member alone has nobody to wait for.
            timing: Timing::Alone,
        })?;
        context.run("consensus", consensus.clone())?;
        Ok(consensus)
    }

    async fn ready(&self, member: &Consensus) {
        member.ready().await;
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

    /// All keys and values; only while the node runs and is a consensus member.
    #[must_use]
    pub fn consensus_kv_root(&self) -> Option<Namespaced> {
        self.consensus_member().map(|member| member.kv_root())
    }

    /// Membership of the consensus cluster; only while the node runs and is a consensus member.
    #[must_use]
    pub fn consensus_cluster(&self) -> Option<Membership> {
        self.consensus_member().map(|member| member.membership().clone())
    }
}
