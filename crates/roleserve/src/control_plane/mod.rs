//! [`ControlPlane`]: runs the consensus member of this node and its curator, for as long as they are wanted.
//!
//! It decides nothing about membership: the Manager brings back a member that the node has, and the worker for roles starts a
//! new one or takes it away. Both say what they want here, and the first who wants a member has it started for all.
//!
//! The curator follows by itself: it runs while there is a member and it is known who the node is, and it always ends before
//! the member does.

mod slot;
mod stored;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polis_consensus::{Configuration, Consensus, EtcdBinary, Pace, PeerMap, PeerPki, Start, Timing};
use polis_curator::{Curator, LeadershipTiming};
use polis_identity::{NodeId, PublicKey};
use polis_rpc::{ServerIdentity, ServerIdentityError};
use polis_storage::{Disk, Layout};
use polis_supervisor::{Context, Runnable, runnable};
use tokio::sync::watch;

use crate::identity::Identity;
use slot::Slot;

pub use stored::{StoredMember, StoredMemberError};
pub(crate) use stored::{begin_join, clear, finish_join, renew, reserve};

/// What a control plane is made of.
pub struct ControlPlaneSettings {
    /// The etcd program.
    pub etcd: EtcdBinary,
    /// The disk of the node.
    pub disk: Arc<dyn Disk>,
    /// Address at which other nodes reach this one; `None` while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
}

/// What a consensus member is started with.
#[derive(Clone)]
pub struct MemberSettings {
    /// Its credentials.
    pub credentials: PeerPki,
    /// Public key of the node.
    pub public_key: PublicKey,
    /// What it does when its data are absent.
    pub start: Start,
}

/// The control plane of this node. Clones are the same.
#[derive(Clone)]
pub struct ControlPlane(Arc<Inner>);

struct Inner {
    settings: ControlPlaneSettings,
    /// Held for as long as what is wanted changes, and never across an await.
    wanted: Mutex<Wanted>,
    member_slot: Slot<Consensus>,
    member: watch::Sender<Option<Consensus>>,
    curator_slot: Slot<Curator>,
    curator: watch::Sender<Option<Curator>>,
}

#[derive(Default)]
struct Wanted {
    /// A member is being stopped: none is started meanwhile.
    stopping: bool,
    /// The data of the member are not there for the moment: none is started meanwhile.
    suspended: bool,
    /// What the curator shows; absent while it is not known who this node is.
    identity: Option<ServerIdentity>,
    /// Where the other members are, for the present member and for the next.
    peers: PeerMap,
}

impl ControlPlane {
    /// Prepares a control plane; nothing runs yet.
    #[must_use]
    pub fn new(settings: ControlPlaneSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            wanted: Mutex::default(),
            member_slot: Slot::default(),
            member: watch::Sender::new(None),
            curator_slot: Slot::default(),
            curator: watch::Sender::new(None),
        }))
    }

    /// The runnable whose children the member and the curator are. Nothing runs without it.
    #[must_use]
    pub fn runnable(&self) -> impl Runnable {
        let control_plane = self.clone();
        runnable(move |context: Context| {
            let control_plane = control_plane.clone();
            async move {
                let (members, curators) = (control_plane.0.member_slot.clone(), control_plane.0.curator_slot.clone());
                context.run("consensus", move |context| {
                    let slot = members.clone();
                    async move { slot.run(context, |consensus| consensus).await }
                })?;
                context.run("curator", move |context| {
                    let slot = curators.clone();
                    async move { slot.run(context, |curator| curator).await }
                })?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        })
    }

    /// Starts the consensus member. If there is one already, that is returned and goes on as it is. Call it within a tokio
    /// runtime. Blocks for a moment.
    ///
    /// # Errors
    ///
    /// When the system does not give what a member needs, such as a port on loopback, or while a member is being stopped; it can
    /// be tried again.
    pub fn start_member(&self, settings: MemberSettings) -> io::Result<Consensus> {
        let (known_members, former_addresses) = self.0.remembered(&settings);
        let wanted = self.0.wanted();
        if wanted.stopping {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "the consensus member is being stopped"));
        }
        if wanted.suspended {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "the data partition is not open"));
        }
        let known = self.0.member.borrow().clone();
        if let Some(member) = known {
            return Ok(member);
        }
        let MemberSettings { credentials, public_key, start } = settings;
        let timing = timing(&start, &wanted.peers, known_members);
        let ControlPlaneSettings { etcd, disk, address } = &self.0.settings;
        let consensus = Consensus::new(Configuration {
            etcd: etcd.clone(),
            public_key,
            pki: credentials,
            address: address.clone(),
            disk: Arc::clone(disk),
            start,
            timing,
        })?;
        consensus.set_peers(wanted.peers.clone());
        consensus.set_former_addresses(former_addresses);
        self.0.member_slot.want(consensus.clone());
        self.0.member.send_replace(Some(consensus.clone()));
        self.0.start_curator(&wanted);
        Ok(consensus)
    }

    /// Stops the curator and then the member, and returns when nothing of them runs any more. May be dropped and called again,
    /// and goes on then. It takes the runnable for that.
    pub(crate) async fn stop_member(&self) {
        self.0.wanted().stopping = true;
        self.0.curator.send_replace(None);
        self.0.curator_slot.clear();
        self.0.curator_slot.vacated().await;
        self.0.member_slot.clear();
        self.0.member_slot.vacated().await;
        let mut wanted = self.0.wanted();
        self.0.member.send_replace(None);
        wanted.stopping = false;
    }

    /// Stops the curator and the member as the data of the member are lost, and returns when nothing of them runs any more; none is
    /// started before [`ControlPlane::resume`]. May be dropped and called again.
    pub async fn suspend(&self) {
        self.0.wanted().suspended = true;
        self.stop_member().await;
    }

    /// Lets a member be started again.
    pub fn resume(&self) {
        self.0.wanted().suspended = false;
    }

    /// Goes on with a stop that was begun and dropped, if there is one.
    pub(crate) async fn finish_stop(&self) {
        let stopping = self.0.wanted().stopping;
        if stopping {
            self.stop_member().await;
        }
    }

    /// The consensus member, from the moment that it is started until it has stopped.
    #[must_use]
    pub fn member(&self) -> watch::Receiver<Option<Consensus>> {
        self.0.member.subscribe()
    }

    /// The curator, for as long as it is to run.
    #[must_use]
    pub fn curator(&self) -> watch::Receiver<Option<Curator>> {
        self.0.curator.subscribe()
    }

    /// Says who this node is; the curator waits for that.
    ///
    /// # Errors
    ///
    /// When the parts of the identity do not belong together.
    pub(crate) fn set_identity(&self, identity: &Identity) -> Result<(), ServerIdentityError> {
        let Identity { key, certificate, authority, .. } = identity;
        let identity = ServerIdentity::new(key, certificate.clone(), authority.clone())?;
        let mut wanted = self.0.wanted();
        wanted.identity = Some(identity);
        self.0.start_curator(&wanted);
        Ok(())
    }

    /// Says where the other members are now.
    pub(crate) fn set_peers(&self, peers: PeerMap) {
        let mut wanted = self.0.wanted();
        if wanted.peers == peers {
            return;
        }
        if let Some(member) = &*self.0.member.borrow() {
            member.set_peers(peers.clone());
        }
        wanted.peers = peers;
    }
}

impl Inner {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the curator if all that it needs is there and it does not run.
    fn start_curator(&self, wanted: &Wanted) {
        if wanted.stopping || self.curator.borrow().is_some() {
            return;
        }
        let (Some(identity), Some(consensus)) = (wanted.identity.clone(), self.member.borrow().clone()) else { return };
        let address = self.settings.address.clone();
        let settings = polis_curator::Settings { consensus, identity, address, timing: LeadershipTiming::default() };
        let curator = Curator::new(settings);
        self.curator_slot.want(curator.clone());
        self.curator.send_replace(Some(curator));
    }

    /// How many members there were when this node was last up, and where it was itself, for one that comes back. Reads the disk, so
    /// not under the lock.
    fn remembered(&self, settings: &MemberSettings) -> (usize, Vec<IpAddr>) {
        match settings.start {
            Start::Found | Start::Join(_) => (0, Vec::new()),
            Start::Existing => {
                let layout = Layout::new(Arc::clone(&self.settings.disk));
                let directory = layout.esp.polis.cluster_directory.load().ok().flatten();
                let nodes = directory.map(|loaded| loaded.value.nodes).unwrap_or_default();
                let own = NodeId::of(&settings.public_key).to_string();
                let addresses = nodes.iter().filter(|node| node.node_id == own).flat_map(|node| &node.addresses);
                let addresses = addresses.filter_map(|address| address.parse().ok()).collect();
                (nodes.iter().filter(|node| node.consensus_member).count(), addresses)
            }
        }
    }
}

/// Timing to begin with: a member that is likely to be alone does not wait as if it were not. What is wrong is put right later, at
/// the price of one restart of etcd.
fn timing(start: &Start, peers: &PeerMap, known_members: usize) -> Timing {
    match start {
        Start::Found => Timing::Alone,
        Start::Existing if peers.is_empty() && known_members <= 1 => Timing::Alone,
        Start::Existing | Start::Join(_) => Timing::Network(Pace::default()),
    }
}
