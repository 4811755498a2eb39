//! Cold start: how a node whose data are locked gets its key from the other members, and what it keeps for that while it runs
//! (`cold-start.md`).
//!
//! Two things are known from the moment at which the journal says that the node belongs to a cluster, for as long as the process
//! lives, whether the data are locked or open: [`MemberKeys`], who the node is among the members, with what it knows of them; and
//! its [`Lock`]. The unlock port is served from these.
//!
//! While the data are locked, [`unlock`] asks the others; once they are open, [`Inner::run_drills`] tries the same again for each
//! split of the key that the keeper of the keys has made (module `unlock_keys`).

mod door;
mod drills;
mod store;
mod told;
mod unlock;
mod unlock_file;
mod whereabouts;

use std::sync::{Arc, Mutex, PoisonError};

use polis_identity::{
    AuthorityCertificate, Certificate, JoinKey, NodeId, PublicKey, ShareKey, verify_certificate_authority,
};
use polis_storage::Journal;
use polis_storage::journal::Phase;
use polis_supervisor::Context;
use polis_unlock_service::{Contacts, KnownAddresses, Lock, Members, UnlockStatus};
use tokio::sync::watch;

pub(crate) use self::door::{DATA_KEYS_WRONG, Door};
use self::store::MemberStore;
use crate::consensus::ConsensusProvider;
use crate::ending::is_erased;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::Ended;

/// Who a node is among the members of its cluster, as its journal tells: enough to answer them and to ask them, also while its data
/// are locked. Has no `Debug`: it holds keys.
#[derive(Clone)]
pub struct MemberKeys {
    /// The node.
    pub id: NodeId,
    /// Its public key.
    pub public_key: PublicKey,
    /// Certificate of its cluster's CA.
    pub authority: AuthorityCertificate,
    /// The key by which members know each other on the unlock port.
    pub join_key: JoinKey,
    /// The key to which the shares of others are encrypted.
    pub share_key: ShareKey,
    /// What it knows of the members.
    pub members: Members,
}

/// What the parts of a cold start tell each other and the rest of the node.
pub(crate) struct ColdStartState {
    pub(crate) keys: watch::Sender<Option<Arc<MemberKeys>>>,
    /// The same, for those who need no keys.
    pub(crate) members: watch::Sender<Option<Members>>,
    /// Set with the keys.
    store: Mutex<Option<Arc<MemberStore>>>,
    pub(crate) lock: watch::Sender<Lock>,
    /// Who has called on the unlock port.
    pub(crate) contacts: Contacts,
    /// Where the others are said to be, while the data are locked.
    pub(crate) addresses: watch::Sender<Arc<KnownAddresses>>,
    /// How far the present unlock is, or the last one was.
    pub(crate) unlocking: watch::Sender<Arc<UnlockStatus>>,
    /// The same of drills.
    pub(crate) drilling: watch::Sender<Arc<UnlockStatus>>,
}

impl ColdStartState {
    pub(crate) fn new() -> Self {
        Self {
            keys: watch::Sender::new(None),
            members: watch::Sender::new(None),
            store: Mutex::default(),
            lock: watch::Sender::new(Lock::Locked),
            contacts: Contacts::default(),
            addresses: watch::Sender::default(),
            unlocking: watch::Sender::default(),
            drilling: watch::Sender::default(),
        }
    }

    /// Ends what belongs to a life of the Manager's runnable when it is dropped, which is to be when that life ends.
    pub(crate) const fn of_this_life(&self) -> OfThisLife<'_> {
        OfThisLife(self)
    }

    /// Says whether the node is locked.
    pub(crate) fn set_lock(&self, lock: Lock) {
        self.lock.send_if_modified(|known| {
            let is_new = *known != lock;
            *known = lock;
            is_new
        });
    }
}

/// See [`ColdStartState::of_this_life`].
pub(crate) struct OfThisLife<'a>(&'a ColdStartState);

impl Drop for OfThisLife<'_> {
    fn drop(&mut self) {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(store) = store {
            store.belong_to(None);
        }
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// Makes it known who this node is among the members of its cluster, if its journal says that it belongs to one. It is the same in
    /// every life of the Manager.
    pub(crate) async fn know_members(&self, context: &Context, journal: &Journal) -> Result<(), Ended> {
        match journal.phase() {
            Phase::Enrolled if !is_erased(journal) => {}
            Phase::Formattable | Phase::Formatted | Phase::Enrolled | Phase::Removed { .. } => return Ok(()),
        }
        let known = self.cold_start.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(store) = known {
            store.belong_to(Some(context));
            return Ok(());
        }
        let (public_key, authority) = membership(journal)?;
        let (store, known) = self.load_members(context, journal, &authority).await?;
        let store = Arc::new(store);
        *self.cold_start.store.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&store));
        let members = Members::new(NodeId::of(&public_key), store, known);
        self.cold_start.keys.send_replace(Some(Arc::new(MemberKeys {
            id: NodeId::of(&public_key),
            public_key,
            authority,
            join_key: JoinKey::from_secret(journal.join_key.clone()),
            share_key: ShareKey::from_secret(journal.share_key.clone()),
            members: members.clone(),
        })));
        self.cold_start.members.send_replace(Some(members));
        Ok(())
    }
}

/// Who the node is, and its cluster's CA, of a node that is a member.
pub(crate) fn membership(journal: &Journal) -> Result<(PublicKey, AuthorityCertificate), Failure> {
    let unusable = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Disk {
        what: "the enrolment journal cannot be used",
        source,
    };
    let node = PublicKey::new(journal.node_public_key).map_err(|error| unusable(error.into()))?;
    let der = journal.cluster_ca.clone().ok_or_else(|| unusable("it names no cluster".into()))?;
    let certificate = Certificate::from_der(der).map_err(|error| unusable(error.into()))?;
    let authority = verify_certificate_authority(certificate).map_err(|error| unusable(error.into()))?;
    Ok((node, authority))
}

/// Waits for news: for ever once nobody has any.
async fn changed<T>(news: &mut watch::Receiver<T>) {
    if news.changed().await.is_err() {
        std::future::pending().await
    }
}
