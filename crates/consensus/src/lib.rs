//! One member of the cluster's consensus: the real etcd as a child process, with addresses that are identities.
//!
//! [`Consensus`] is the handle that the rest of a node holds, and the runnable to put under a supervisor. It starts etcd from
//! any half-done state, keeps it running, reads its log into the log tree, and says through [`Status`] and through
//! conditions how it is. [`Namespaced`] is the client through which everything else reads and writes the cluster's state,
//! [`Membership`] changes who is a member.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use polis_consensus::{Configuration, Consensus, EtcdBinary, PeerPki, Start, Timing, Transaction};
//! # async fn example(disk: Arc<dyn polis_storage::Disk>, key: polis_identity::NodeKey,
//! #     address: tokio::sync::watch::Receiver<Option<std::net::IpAddr>>, context: polis_supervisor::Context,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let etcd = EtcdBinary::find(None, std::env::var_os("PATH").as_deref())?;
//! let credentials = polis_storage::Layout::new(Arc::clone(&disk)).data.etcd.credentials;
//! let pki = PeerPki::load_or_found(&credentials, &key)?;
//! let consensus = Consensus::new(Configuration {
//!     etcd,
//!     public_key: key.public(),
//!     pki,
//!     address,
//!     disk,
//!     start: Start::Found,
//!     timing: Timing::Alone,
//! })?;
//! context.run("consensus", consensus.clone())?;
//! consensus.ready().await;
//! let curator = consensus.namespaced(&["curator"])?;
//! curator.transact("cluster/birth", Transaction::new().if_absent("/owner").put("/owner", "...")).await?;
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! - **Addresses.** A peer URL is `https://[ULA]:7834`; the ULA follows from the node's key and never changes. etcd listens on
//!   the node's real address, and its outgoing connections go through the [`Dialer`], a CONNECT proxy inside this process
//!   that knows where every member is today ([`Consensus::set_peers`]). Moving is no change of members.
//! - **Credentials.** Members prove themselves with their node key, certified by an authority of their own ([`PeerPki`]).
//! - **State.** etcd's log lines are the trigger, what it answers is the truth; besides, it is asked every
//!   [`CHECK_INTERVAL`]. There is no other timer while nothing happens.
//! - **Changes.** Every call that changes something in etcd goes through one function and names its call site, so that a test can
//!   end the process exactly before or after it.
//! - **Timing.** A member alone elects itself after 0.1 s; members over a network wait longer ([`Timing`]), in a pace that follows
//!   from round trips and syncs that were measured, and is calmer where leaders are lost again and again, as on machines whose
//!   processors are busy. etcd is restarted for a new timing or address; the state of the node does
//!   not change by that. The only member of a cluster is told so after a restart, and does not wait for others.
//! - **Answers.** [`Consensus::survey`] asks each member at its peer port, at this moment and as a member, whether it is alive,
//!   and the leader's etcd how far it is. Nothing else is proof enough for a decision about the quorum.
//! - **Room.** At its quota etcd refuses every write; room is made by itself where that is possible. On a full disk it ends, and is
//!   started again once there is room. Databases that are mostly empty are rewritten, one member at a time
//!   ([`Consensus::defragment_members`]).
//! - **Copies.** A member that has moved is not started while an etcd with its key answers where it was
//!   ([`Consensus::set_former_addresses`]): its data were copied, and two would have one vote twice.
//! - **Removal.** A member that the cluster has removed says so ([`Phase::Removed`]) and runs only now and then: who stays may have
//!   lost the commit of the removal in a kill, and then needs this vote to get it back. Once the cluster itself says that the node is
//!   no member, the data are put away with [`set_aside`], after which the node may join anew.
//! - **Damage.** An etcd that says that it cannot read its data is not started over and over ([`Status::damage`]). Nothing of them is
//!   changed here: whether they may be put away depends on the others.
//!
//! This crate knows nothing of nodes' roles and of what is stored. It does not decide whether a change of members is safe.

#![forbid(unsafe_code)]

mod arguments;
mod binary;
mod client;
mod consensus;
mod damage;
mod defragmentation;
mod dialer;
mod fault;
mod health;
mod hints;
mod histogram;
mod http;
mod log_line;
mod member;
mod membership;
mod nudge;
mod observer;
mod offline;
mod pacer;
mod peer_url;
mod pki;
mod preparation;
mod probe;
mod raft_progress;
mod revocations;
mod room;
mod round_trip;
mod set_aside;
mod space;
mod status;
mod survey;
mod timing;
mod unrest;
mod version;
mod wal;

pub use arguments::QUOTA_BYTES;
pub use binary::{EtcdBinary, EtcdBinaryError};
pub use client::{
    CALL_DEADLINE, Change, Committed, Compacted, KeyValue, KvError, Listing, NameError, Namespaced, SnapshotStream,
    Transaction, Watch,
};
pub use consensus::{Configuration, Consensus, FetchMembers, Start};
pub use defragmentation::{ROUND_INTERVAL, Round, RoundError, WORTH_BYTES, WORTH_PER_CENT};
pub use dialer::{Dialer, PeerMap};
pub use health::{CHECK_INTERVAL, HANGING_AFTER, LEADERLESS_AFTER};
pub use membership::{CHANGE_UNDER_WAY_KEY, Membership, MembershipError};
pub use offline::{OfflineError, OfflineMember, OfflineStart};
pub use peer_url::{PEER_PORT, parse_peer_url, peer_url};
pub use pki::{InvalidPeerPki, PeerPki, PeerPkiError};
pub use raft_progress::CatchUp;
pub use revocations::ReplaceRevocationsError;
pub use set_aside::{RECOVERY_DIRECTORIES, set_aside, set_aside_directories};
pub use status::{Member, Phase, Status};
pub use survey::{MAX_LAG, SURVEY_DEADLINE, Survey, SurveyedMember};
pub use timing::{Pace, Timing};
pub use version::{Reason, Version};

/// Any error, as a cause.
pub type BoxError = polis_supervisor::BoxError;
