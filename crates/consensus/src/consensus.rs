//! [`Consensus`]: the handle that the rest of the node holds, and the runnable behind it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use polis_identity::{NodeId, PeerAddress, PublicKey, RevocationList};
use polis_storage::{Disk, Layout};
use polis_supervisor::{Context, Runnable, RunnableResult};
use tokio::sync::watch;

use crate::BoxError;
use crate::arguments::QUOTA_BYTES;
use crate::binary::EtcdBinary;
use crate::client::{Connection, KvError, NameError, Namespaced, SnapshotStream};
use crate::dialer::{Dialer, PeerMap};
use crate::health::Child;
use crate::membership::{Membership, MembershipError};
use crate::pki::PeerPki;
use crate::probe::Prober;
use crate::raft_progress::CatchUp;
use crate::revocations::{self, ReplaceRevocationsError};
use crate::round_trip;
use crate::status::{Member, Status};
use crate::survey::{self, Survey};
use crate::timing::Timing;

/// Longest text of etcd's metrics that is taken. With nine members it has some 150 KiB.
pub(crate) const MAX_METRICS: u64 = 8 << 20;

/// Everything that a member is made of.
pub struct Configuration {
    /// The etcd program.
    pub etcd: EtcdBinary,
    /// The node's public key: its id and its identity address follow from it.
    pub public_key: PublicKey,
    /// The member's credentials.
    pub pki: PeerPki,
    /// The node's address, on which other members reach this one; `None` while it has none. etcd is started anew when it
    /// changes.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// The disk of the node. etcd's data are where the [`Layout`] has them; the directory above must exist.
    pub disk: Arc<dyn Disk>,
    /// What to do when the data directory is empty.
    pub start: Start,
    /// Raft timing to begin with: [`Timing::Alone`] for the only member of its cluster, else [`Timing::Network`], whose pace
    /// is only what to assume while nothing is measured. Which of the two was right is found out from the members later.
    pub timing: Timing,
}

/// What a member does whose data directory is empty. One with data goes on with them, whatever is said here.
#[derive(Clone)]
pub enum Start {
    /// It creates a new cluster.
    Found,
    /// Nothing: its data must be there. Starting without them would make a member that has forgotten its votes.
    Existing,
    /// It joins the cluster that has added it.
    Join(Arc<dyn FetchMembers>),
}

/// Where a joiner gets the current list of members from. It must be exactly current, so it is asked at each attempt.
pub trait FetchMembers: Send + Sync + 'static {
    /// The members, the joiner among them.
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<Member>, BoxError>>;
}

/// One member of the cluster's consensus. Clones are handles of the same member; run one of them under a supervisor.
///
/// It may be used before it runs: calls fail with [`KvError::Unavailable`](crate::KvError::Unavailable) until etcd answers.
#[derive(Clone)]
pub struct Consensus(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) etcd: EtcdBinary,
    pub(crate) name: NodeId,
    pub(crate) identity_address: Ipv6Addr,
    pub(crate) pki: Mutex<PeerPki>,
    pub(crate) prober: Prober,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) layout: Layout,
    pub(crate) data_path: PathBuf,
    pub(crate) ephemeral_path: PathBuf,
    pub(crate) start: Start,
    pub(crate) timing: watch::Sender<Timing>,
    /// The pace was measured once, or set.
    pub(crate) is_paced: AtomicBool,
    /// Size of the database at which etcd takes no writes, in bytes.
    pub(crate) quota_bytes: AtomicU64,
    pub(crate) peers: watch::Sender<PeerMap>,
    /// Where this member was before.
    pub(crate) former_addresses: Mutex<Vec<IpAddr>>,
    pub(crate) dialer: Dialer,
    pub(crate) connection: Connection,
    pub(crate) membership: Membership,
    pub(crate) child: watch::Sender<Child>,
    pub(crate) complaints: Mutex<VecDeque<String>>,
    pub(crate) status: watch::Sender<Status>,
}

impl Consensus {
    /// Prepares a member; nothing runs yet. Call it within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the dialer gets no port on loopback, or the disk has a relative path and the working directory is gone.
    pub fn new(configuration: Configuration) -> std::io::Result<Self> {
        let Configuration { etcd, public_key, pki, address, disk, start, timing } = configuration;
        let layout = Layout::new(Arc::clone(&disk));
        let peers = watch::Sender::new(PeerMap::new());
        let ephemeral = &layout.ephemeral.consensus;
        // The root may be given relative to this process's working directory, and etcd gets one of its own.
        let data_path = std::path::absolute(layout.data.etcd.data.full_path())?;
        let ephemeral_path = std::path::absolute(ephemeral.directory.full_path())?;
        let connection = Connection::new(ephemeral.client_socket.full_path());
        Ok(Self(Arc::new(Inner {
            etcd,
            name: NodeId::of(&public_key),
            identity_address: PeerAddress::of(&public_key).ip(),
            prober: Prober::new(&pki),
            pki: Mutex::new(pki),
            address,
            data_path,
            ephemeral_path,
            disk,
            layout,
            start,
            timing: watch::Sender::new(timing),
            is_paced: AtomicBool::new(false),
            quota_bytes: AtomicU64::new(QUOTA_BYTES),
            dialer: Dialer::bind(peers.subscribe())?,
            peers,
            former_addresses: Mutex::default(),
            membership: Membership::new(connection.clone()),
            connection,
            child: watch::Sender::default(),
            complaints: Mutex::default(),
            status: watch::Sender::new(Status::new(timing)),
        })))
    }

    /// What the member is doing, now and from now on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.0.status.subscribe()
    }

    /// Waits until reads and writes through this member work.
    pub async fn ready(&self) -> Status {
        let mut status = self.status();
        // The status is cloned at once, since its guard cannot cross the next await.
        let ready = status.wait_for(Status::is_ready).await.map(|status| status.clone());
        match ready {
            Ok(status) => status,
            // This handle holds the sender.
            Err(_) => std::future::pending().await,
        }
    }

    /// A client for the keys under the path with these parts, for example `["curator"]` for `namespaced:curator/`.
    ///
    /// # Errors
    ///
    /// When there is no part, or one cannot be a part of a path.
    pub fn namespaced(&self, parts: &[&str]) -> Result<Namespaced, NameError> {
        Namespaced::of_parts(self.0.connection.clone(), parts)
    }

    /// A client for the whole key space.
    #[must_use]
    pub fn kv_root(&self) -> Namespaced {
        Namespaced::root(self.0.connection.clone())
    }

    /// The members of the cluster and what can be done to them.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.0.membership
    }

    /// Says where the other members are now, by their identity addresses. Connections to a member that has moved are
    /// closed, so that etcd makes new ones.
    pub fn set_peers(&self, peers: PeerMap) {
        self.0.peers.send_if_modified(|known| {
            let changed = *known != peers;
            *known = peers;
            changed
        });
    }

    /// Says where this member was in earlier starts; call it before it runs. While an etcd with its key answers there, its data were
    /// copied, and it is not started: two would have one vote twice.
    pub fn set_former_addresses(&self, addresses: Vec<IpAddr>) {
        *self.0.former_addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Sets the size of the database, in bytes, at which etcd takes no writes; call it before the member runs. It is [`QUOTA_BYTES`]
    /// unless this is called, and has to be the same on all members.
    pub fn set_quota(&self, bytes: u64) {
        self.0.quota_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How every member is at this moment, by its own answer.
    ///
    /// # Errors
    ///
    /// When the list of members cannot be read.
    pub async fn survey(&self) -> Result<Survey, MembershipError> {
        survey::survey(&self.0).await
    }

    /// How far the learner with this id of etcd is. Only the leader knows, and only if its etcd tells: `None` is unknown. Much
    /// cheaper than a survey.
    pub async fn catch_up(&self, id: u64) -> Option<CatchUp> {
        survey::progress(&self.0).await?.of(id)
    }

    /// Measures how long a packet takes to the machine at `address` and back, within `deadline`; `None` when it does not
    /// answer.
    pub async fn round_trip(&self, address: IpAddr, deadline: Duration) -> Option<Duration> {
        round_trip::measure(address, deadline).await
    }

    /// Tells etcd of another list of revocations, which counts from the next connection of a peer on. An older one than
    /// is known is ignored. It is not kept: the caller stores it with the credentials, and tells it again after a start.
    /// Blocks for a moment.
    ///
    /// # Errors
    ///
    /// When the list is none of this cluster's peers, or cannot be written.
    pub fn replace_revocations(&self, list: RevocationList) -> Result<(), ReplaceRevocationsError> {
        revocations::replace(&self.0, list)
    }

    /// etcd's own metrics, in the text form of Prometheus.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn etcd_metrics(&self) -> std::io::Result<Vec<u8>> {
        self.0.connection.get("/metrics", MAX_METRICS).await
    }

    /// A copy of the whole state, from this member alone: it costs the others nothing.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn snapshot(&self) -> Result<SnapshotStream, KvError> {
        SnapshotStream::open(&self.0.connection).await
    }

    /// Changes the raft timing. etcd is stopped in order and started again with it; clients see a short outage.
    pub fn set_timing(&self, timing: Timing) {
        self.0.is_paced.store(true, Ordering::Relaxed);
        self.0.timing.send_if_modified(|known| std::mem::replace(known, timing) != timing);
    }
}

impl Runnable for Consensus {
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let log = context.sub_logger("etcd")?;
            let dialing = Arc::clone(&inner);
            context.run("dialer", move |context: Context| {
                let dialer = dialing.dialer.clone();
                async move {
                    context.healthy();
                    Ok(context.unless_cancelled(dialer.serve()).await?)
                }
            })?;
            let observed = Arc::clone(&inner);
            context.run("observer", move |context: Context| crate::observer::run(Arc::clone(&observed), context))?;
            let paced = Arc::clone(&inner);
            context.run("pacer", move |context: Context| crate::pacer::run(Arc::clone(&paced), context))?;
            let full = Arc::clone(&inner);
            context.run("space", move |context: Context| crate::space::run(Arc::clone(&full), context))?;
            let shrinking = Self(Arc::clone(&inner));
            context.run("defragmentation", move |context: Context| {
                crate::defragmentation::run(shrinking.clone(), context)
            })?;
            context
                .run("member", move |context: Context| crate::member::run(Arc::clone(&inner), log.clone(), context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        })
    }
}
