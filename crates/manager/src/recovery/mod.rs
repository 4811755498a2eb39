//! The recovery key of the cluster, as one node deals with it (`cold-start.md`, "Recovery key").
//!
//! - While the node runs, [`blobs`] keeps what opens it for whoever has the recovery key: on the ESP, where the node itself finds it, and
//!   with the cluster. It is sealed anew whenever the record, the key of the data or the recovery key are others.
//! - While the node is locked, it offers that blob on the unlock port ([`Recovery`], from memory), and what somebody makes of it with
//!   the recovery key becomes an [order](orders::RecoveryOrder), taken by whoever waits for a key.
//! - While the journal cannot be unsealed, [`journal`] waits for that, or for the record that comes out of the blob.
//!
//! What comes out of a blob is believed once it has opened the data, and nothing is written before. Only then the record becomes the
//! journal, sealed to the present state of the machine.

mod blobs;
mod journal;
mod orders;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use polis_identity::{JoinKey, NodeId, PublicKey};
use polis_recovery::node::{NodeState, Recovered, RefusedAnswer, answer, offer};
use polis_recovery::{Blob, BlobContent, BlobSubject, ContentKey};
use polis_secret::Secret32;
use polis_storage::Journal;
use polis_storage::journal::Phase;
use polis_supervisor::BoxError;
use polis_unlock_service::{Lock, RecoverError, Recovery, RecoveryAnswer};
use tokio::sync::watch;

pub(crate) use self::blobs::BlobError;
pub(crate) use self::journal::is_recoverable;
use self::orders::RecoveryOrders;
use crate::consensus::ConsensusProvider;
use crate::manager::Manager;

/// The blob on the ESP.
#[derive(Clone)]
enum Kept {
    /// It was not looked for yet.
    NotRead,
    /// There is none.
    None,
    /// There is one.
    Blob(Arc<KeptBlob>),
    /// There is something that cannot be used, for this reason.
    Unusable(String),
}

/// A blob as the node keeps it.
struct KeptBlob {
    blob: Blob,
    /// What it was sealed from.
    content_hash: [u8; 32],
}

/// What the parts of a recovery tell each other.
pub(crate) struct Recovering {
    /// Whose blob the node's own is; absent until the journal tells, or if the node is none that has one.
    subject: watch::Sender<Option<BlobSubject>>,
    /// Whose data partition there is, as far as that can be seen without keys. Set while the journal cannot be unsealed.
    found_node: Mutex<Option<NodeId>>,
    /// The blob on the ESP. Written by whoever holds `writing`.
    kept: watch::Sender<Kept>,
    writing: tokio::sync::Mutex<()>,
    /// The key of the data that a blob must hold before any other stops opening them.
    required: Mutex<Option<Secret32>>,
    /// The key that came out of a blob and has opened the data of a node without a journal.
    opened_with: Mutex<Option<Secret32>>,
    orders: RecoveryOrders,
}

impl Recovering {
    pub(crate) fn new() -> Self {
        Self {
            subject: watch::Sender::new(None),
            found_node: Mutex::default(),
            kept: watch::Sender::new(Kept::NotRead),
            writing: tokio::sync::Mutex::default(),
            required: Mutex::default(),
            opened_with: Mutex::default(),
            orders: RecoveryOrders::new(),
        }
    }

    /// Takes down what the journal says of who the node is.
    pub(crate) fn note(&self, journal: &Journal) {
        let subject = subject(journal);
        self.subject.send_if_modified(|known| std::mem::replace(known, subject) != subject);
    }

    /// Waits until somebody with the recovery key gives keys to be tried. Costs nothing while nobody does; may be dropped and called
    /// again.
    pub(crate) async fn order(&self) -> orders::RecoveryOrder {
        self.orders.next().await
    }

    /// The key that has opened the data already, in this start, if one has.
    pub(crate) fn opened_with(&self) -> Option<Secret32> {
        self.opened_with.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The blob to be offered.
    fn blob(&self) -> Result<Option<Arc<KeptBlob>>, String> {
        match &*self.kept.borrow() {
            Kept::NotRead => {
                Err("the node has only just started and has not looked for its recovery blob yet".to_owned())
            }
            Kept::None => Ok(None),
            Kept::Blob(kept) => Ok(Some(Arc::clone(kept))),
            Kept::Unusable(reason) => Err(format!("the node's recovery blob cannot be used: {reason}")),
        }
    }

    /// How the node stands.
    fn state(&self, lock: &Lock) -> Result<NodeState, String> {
        Ok(match lock {
            Lock::Open => NodeState::Open,
            Lock::Sealed { .. } => {
                NodeState::Sealed { node: *self.found_node.lock().unwrap_or_else(PoisonError::into_inner) }
            }
            Lock::Locked => {
                let subject = *self.subject.borrow();
                NodeState::Locked(subject.ok_or("the node is not a member of a cluster, or has only just started")?)
            }
        })
    }
}

/// Whose blob one of this journal's node is; none unless it is a member of a cluster.
pub(crate) fn subject(journal: &Journal) -> Option<BlobSubject> {
    match journal.phase() {
        Phase::Enrolled => {}
        Phase::Formattable | Phase::Formatted | Phase::Removed { .. } => return None,
    }
    Some(BlobSubject {
        cluster: journal.cluster_id.as_ref()?.parse().ok()?,
        node: NodeId::of(&PublicKey::new(journal.node_public_key).ok()?),
        join_key: JoinKey::from_secret(journal.join_key.clone()).public(),
    })
}

/// Offers the node's blob, and takes what the recovery key makes of it to whoever waits for keys.
#[async_trait]
impl<C: ConsensusProvider> Recovery for Manager<C> {
    async fn offer(&self) -> Result<Vec<u8>, String> {
        let recovering = &self.inner().recovery;
        let state = recovering.state(&self.lock().borrow())?;
        let kept = recovering.blob()?;
        let offered = offer(&state, kept.as_ref().map(|kept| &kept.blob)).map_err(|error| error.to_string())?;
        Ok(offered.to_bytes())
    }

    async fn recover(&self, sent: RecoveryAnswer) -> Result<String, RecoverError> {
        let recovering = &self.inner().recovery;
        let mut lock = self.lock();
        let state = recovering.state(&lock.borrow_and_update()).map_err(RecoverError::NothingOffered)?;
        let kept = recovering.blob().map_err(RecoverError::NothingOffered)?;
        let blob = kept.as_ref().map(|kept| &kept.blob);
        if blob.is_some_and(|blob| blob.digest() != sent.blob_sha256) {
            return Err(RecoverError::OtherBlob);
        }
        let recovered = answer(&state, blob, &ContentKey::from_secret(sent.content_key)).map_err(refused)?;
        let subject = blob.map(|blob| *blob.subject());
        let (journal, content) = match recovered {
            Recovered::Keys(content) => (None, content),
            Recovered::Record(content) => {
                let journal = record_of(&content, subject).map_err(RecoverError::Failed)?;
                (Some(Box::new(journal)), content)
            }
        };
        let BlobContent { cluster_unlock_key, pending_cluster_unlock_key, .. } = content;
        let keys = pending_cluster_unlock_key.into_iter().chain([cluster_unlock_key]).collect();
        let outcome = recovering.orders.give(keys, journal);
        tokio::select! {
            biased;
            outcome = outcome => outcome,
            // The others have opened it before anybody could look at the order.
            _ = lock.wait_for(|lock| *lock == Lock::Open) => {
                Ok("its data are open: the other members have opened them meanwhile".to_owned())
            }
        }
    }
}

/// The record of a blob, if it is the one of the node that the blob says.
fn record_of(content: &BlobContent, expected: Option<BlobSubject>) -> Result<Journal, BoxError> {
    let journal = Journal::from_payload(&content.record)?;
    if subject(&journal) != expected {
        return Err(
            "the record in the recovery blob is not that of the node that the blob names; nothing was changed".into()
        );
    }
    Ok(journal)
}

fn refused(error: RefusedAnswer) -> RecoverError {
    match &error {
        RefusedAnswer::NothingOffered(source) => RecoverError::NothingOffered(source.to_string()),
        RefusedAnswer::WrongKey(source) => RecoverError::WrongKey(format!("{error}: {source}")),
    }
}
