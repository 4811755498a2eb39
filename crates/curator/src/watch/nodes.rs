//! [`Nodes`]: the handle, and the runnable behind it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::{Change, Compacted, KeyValue, Status, Transaction};
use polis_identity::{AuthorityCertificate, NodeId, RevocationList};
use polis_proto::curator_state::{NodeEnrolment, RecoveryKey, SignedMemberList};
use polis_rpc::{News, Trust};
use polis_supervisor::{Context, Runnable, RunnableResult, with_causes};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::index::Index;
use super::members::consensus_members;
use super::subscription::{AllNodes, NodeSubscription};
use super::{ClusterOrders, NodeView};
use crate::membership::{UnfinishedRemoval, read_unfinished};
use crate::{NodeRecord, State, StateError, Versioned, layout};

/// Pause before the state is listed again after that has failed. A member that is ready answers; this is for the moment in which
/// it ceases to be.
const LIST_PAUSE: Duration = Duration::from_secs(1);

/// The nodes of the cluster, as this node last heard of them. Clones are handles of the same; run one of them under a
/// supervisor.
#[derive(Clone)]
pub struct Nodes(Arc<Inner>);

struct Inner {
    state: State,
    status: watch::Receiver<Status>,
    index: Mutex<Index>,
    /// Number of the last change of a record.
    latest: watch::Sender<u64>,
    /// Whether the nodes were listed once.
    listed: watch::Sender<bool>,
    trust: watch::Sender<Arc<Trust>>,
    orders: watch::Sender<Arc<ClusterOrders>>,
    unfinished: watch::Sender<Vec<UnfinishedRemoval>>,
}

/// What is listed together, at one revision.
pub(super) struct Listing {
    revision: i64,
    records: Vec<KeyValue>,
    polis: Vec<KeyValue>,
    revocations: Option<KeyValue>,
    authority: AuthorityCertificate,
}

impl Nodes {
    /// The nodes of this state, followed while the own consensus member has this status.
    #[must_use]
    pub fn new(state: State, status: watch::Receiver<Status>) -> Self {
        Self(Arc::new(Inner {
            state,
            status,
            index: Mutex::default(),
            latest: watch::Sender::new(0),
            listed: watch::Sender::new(false),
            trust: watch::Sender::default(),
            orders: watch::Sender::default(),
            unfinished: watch::Sender::default(),
        }))
    }

    /// What is known of a node.
    #[must_use]
    pub fn view(&self, id: &NodeId) -> NodeView {
        self.index().view(id)
    }

    /// The record of a node.
    #[must_use]
    pub fn get(&self, id: &NodeId) -> Option<Versioned<Arc<NodeRecord>>> {
        self.view(id).record
    }

    /// The records of all nodes, ordered by id.
    #[must_use]
    pub fn all(&self) -> Vec<Versioned<Arc<NodeRecord>>> {
        self.index().records().cloned().collect()
    }

    /// The ids of all nodes, in order.
    #[must_use]
    pub fn living(&self) -> Vec<NodeId> {
        self.index().records().map(|record| record.value.id).collect()
    }

    /// Follows one node, whether or not it exists yet. What is kept for that is freed when the subscription is dropped.
    #[must_use]
    pub fn subscribe_node(&self, id: NodeId) -> NodeSubscription {
        let views = self.index().subscribe(id);
        NodeSubscription::new(self.clone(), id, views)
    }

    /// Follows all nodes: first those that are there, then the changes.
    #[must_use]
    pub fn subscribe_all(&self) -> AllNodes {
        AllNodes::new(self.clone(), self.0.latest.subscribe())
    }

    /// Whom the cluster has let go, and whether this node would know: it has contact with a quorum, and has read the state since.
    #[must_use]
    pub fn trust(&self) -> watch::Receiver<Arc<Trust>> {
        self.0.trust.subscribe()
    }

    /// What every node must learn at once.
    #[must_use]
    pub fn orders(&self) -> watch::Receiver<Arc<ClusterOrders>> {
        self.0.orders.subscribe()
    }

    /// Removals of members of which somebody who could still help the removed one has yet to hear (`cold-start.md`, "Membership
    /// change", E).
    #[must_use]
    pub fn unfinished(&self) -> watch::Receiver<Vec<UnfinishedRemoval>> {
        self.0.unfinished.subscribe()
    }

    /// Waits until the nodes were listed once.
    pub async fn listed(&self) {
        // The sender is in this very value.
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self) -> RunnableResult {
        let mut status = self.0.status.clone();
        loop {
            status.wait_for(Status::is_ready).await?;
            self.change_trust(|trust| trust.news = News::CatchingUp);
            let listing = match self.list().await {
                Ok(listing) => listing,
                Err(error) => {
                    tracing::warn!("the nodes of the cluster cannot be listed: {}", with_causes(&error));
                    // Sooner if the member has been away meanwhile.
                    let _ = timeout(LIST_PAUSE, status.changed()).await;
                    if !status.borrow().is_ready() {
                        self.change_trust(|trust| trust.news = News::CutOff);
                    }
                    continue;
                }
            };
            let revision = listing.revision;
            let authority = listing.authority.clone();
            self.take(listing);
            // Not before: whom the cluster has let go while there was no contact is known only now.
            self.change_trust(|trust| trust.news = News::UpToDate);
            tokio::select! {
                Compacted { oldest } = self.follow_changes(revision, &authority) => {
                    tracing::info!("changes before revision {oldest} are no longer kept: the nodes are listed again");
                }
                lost = status.wait_for(|status| !status.is_ready()) => drop(lost?),
            }
            self.change_trust(|trust| trust.news = News::CutOff);
        }
    }

    pub(super) async fn list(&self) -> Result<Listing, StateError> {
        let state = &self.0.state;
        let authority = state.authority_certificate().await?;
        let transaction =
            Transaction::new().list(layout::nodes()).list(layout::polis()).get(layout::cluster_revocation_list());
        let found = state.read(transaction).await?;
        let revision = found.revision;
        let mut found = found.found.into_iter();
        let mut next = || found.next().unwrap_or_default();
        let (records, polis) = (next(), next());
        let revocations = next().into_iter().next();
        Ok(Listing { revision, records, polis, revocations, authority })
    }

    /// Takes over a listing as a whole: what is known and not in it is gone.
    pub(super) fn take(&self, listing: Listing) {
        let Listing { revision: _, records, polis, revocations, authority } = listing;
        let known = self.index().known();
        let keys = |id| [layout::node(&id), layout::enrolment(&id), layout::tombstone(&id)];
        let mut gone: BTreeSet<String> = known.into_iter().flat_map(keys).collect();
        gone.extend([layout::two_confirmed(), layout::recovery_key()]);
        gone.extend(self.index().removed().iter().map(layout::unfinished_removal));
        let pairs = records.into_iter().chain(polis).chain(revocations);
        let changes = pairs.map(|pair| {
            gone.remove(&*String::from_utf8_lossy(&pair.key));
            Change::Put(pair)
        });
        let changes: Vec<Change> = changes.collect();
        self.apply(changes, &authority);
        let gone = gone.into_iter().map(|key| Change::Delete { key: key.into_bytes(), revision: 0 });
        self.apply(gone.collect(), &authority);
        self.0.listed.send_replace(true);
    }

    pub(super) async fn follow_changes(&self, revision: i64, authority: &AuthorityCertificate) -> Compacted {
        let root = self.0.state.root();
        let mut records = root.watch(layout::nodes(), revision);
        let mut polis = root.watch(layout::polis(), revision);
        let mut revocations = root.watch_key(layout::cluster_revocation_list(), revision);
        loop {
            let changes = tokio::select! {
                changes = records.next() => changes,
                changes = polis.next() => changes,
                changes = revocations.next() => changes,
            };
            match changes {
                Ok(changes) => self.apply(changes, authority),
                Err(compacted) => return compacted,
            }
        }
    }

    /// Takes over changes, in their order.
    fn apply(&self, changes: Vec<Change>, authority: &AuthorityCertificate) {
        let mut is_trust_new = false;
        for change in changes {
            match self.apply_one(change, authority) {
                Ok(is_new) => is_trust_new |= is_new,
                Err(error) => tracing::error!("{}; what was known before is kept", with_causes(&error)),
            }
        }
        let latest = self.index().latest();
        self.0.latest.send_if_modified(|known| std::mem::replace(known, latest) != latest);
        if is_trust_new {
            let removed_nodes = self.index().tombstones().map(|(id, proof)| (*id, proof.to_vec())).collect();
            self.change_trust(|trust| trust.removed_nodes = removed_nodes);
        }
        let unfinished = self.index().unfinished();
        self.0.unfinished.send_if_modified(|known| std::mem::replace(known, unfinished.clone()) != unfinished);
        self.renew_members();
    }

    /// Takes over one change. Returns whether there is a new tombstone.
    fn apply_one(&self, change: Change, authority: &AuthorityCertificate) -> Result<bool, StateError> {
        let key = String::from_utf8_lossy(change.key()).into_owned();
        let pair = match change {
            Change::Put(pair) => Some(pair),
            Change::Delete { .. } => None,
        };
        if let Some(id) = layout::node_of(key.as_bytes(), &layout::nodes()) {
            let records = self.0.state.records();
            if pair.is_none() {
                records.forget(&id);
            }
            let record = pair.map(|pair| records.decode(&pair)).transpose()?;
            self.index().set_record(id, record);
        } else if let Some(id) = layout::node_of_enrolment(&key) {
            let enrolment = pair.map(|pair| decode_enrolment(&key, &pair)).transpose()?;
            self.index().set_enrolment(id, enrolment);
            let floors = self.index().floors();
            self.change_orders(|orders| orders.floors = floors);
        } else if let Some(id) = layout::node_of(key.as_bytes(), &layout::tombstones()) {
            return Ok(self.index().set_tombstone(id, pair.map(|pair| pair.value.into())));
        } else if let Some(id) = layout::node_of(key.as_bytes(), &layout::unfinished_removals()) {
            let read = |pair: KeyValue| {
                let found = Versioned { value: pair.value, revision: pair.mod_revision };
                Ok::<_, StateError>(read_unfinished(&key, found.decode(&key)?)?.value)
            };
            let unfinished = pair.map(read).transpose()?;
            self.index().set_unfinished(id, unfinished);
        } else if key == layout::epoch() {
            let list = pair.map(|pair| SignedMemberList::decode(&pair.value[..])).transpose();
            let list = list.map_err(|source| StateError::damaged(key, source))?;
            self.change_orders(|orders| orders.signed_list = list);
        } else if key == layout::two_confirmed() {
            self.change_orders(|orders| orders.two_confirmed = pair.is_some());
        } else if key == layout::recovery_key() {
            let recovery_key = pair.map(|pair| RecoveryKey::decode(&pair.value[..])).transpose();
            let recovery_key = recovery_key.map_err(|source| StateError::damaged(key, source))?.unwrap_or_default();
            self.change_orders(|orders| orders.recovery_public_key = recovery_key.public_key);
        } else if key == layout::cluster_revocation_list()
            && let Some(pair) = pair
        {
            let list =
                RevocationList::read(pair.value, authority).map_err(|source| StateError::damaged(key, source))?;
            self.change_orders(|orders| orders.revocation_list = list.der().to_vec());
            self.change_trust(|trust| trust.revocations = Some(list));
        }
        Ok(false)
    }

    /// Follows what the own consensus member says of all members.
    async fn follow_members(&self) -> RunnableResult {
        let mut status = self.0.status.clone();
        loop {
            status.mark_unchanged();
            self.renew_members();
            status.changed().await?;
        }
    }

    fn renew_members(&self) {
        let members = consensus_members(&self.0.status.borrow().members, &self.index());
        self.change_orders(|orders| orders.members = members);
    }

    fn change_trust(&self, change: impl FnOnce(&mut Trust)) {
        change_shared(&self.0.trust, change);
    }

    fn change_orders(&self, change: impl FnOnce(&mut ClusterOrders)) {
        change_shared(&self.0.orders, change);
    }
}

impl Runnable for Nodes {
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        let nodes = self.clone();
        async move {
            context.healthy();
            let followed = context.unless_cancelled(async {
                tokio::select! {
                    result = nodes.follow() => result,
                    result = nodes.follow_members() => result,
                }
            });
            let result = followed.await;
            // Nobody follows any more, so nobody would hear of a change.
            nodes.change_trust(|trust| trust.news = News::CutOff);
            result?
        }
        .boxed()
    }
}

/// Changes a shared value and wakes those who watch it, if it is another then.
fn change_shared<T: Clone + PartialEq>(shared: &watch::Sender<Arc<T>>, change: impl FnOnce(&mut T)) {
    shared.send_if_modified(|value| {
        let mut changed = T::clone(value);
        change(&mut changed);
        let is_new = **value != changed;
        if is_new {
            *value = Arc::new(changed);
        }
        is_new
    });
}

fn decode_enrolment(key: &str, pair: &KeyValue) -> Result<Versioned<Arc<NodeEnrolment>>, StateError> {
    let enrolment = NodeEnrolment::decode(&pair.value[..]).map_err(|source| StateError::damaged(key, source))?;
    Ok(Versioned { value: Arc::new(enrolment), revision: pair.mod_revision })
}
