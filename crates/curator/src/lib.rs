//! The state of a cluster as it lies in etcd, and who may change it: its layout, its birth in one transaction, its leader,
//! the services that read and change it, and the changes of the consensus members.
//!
//! A cluster begins to exist by [`create_cluster`]: CA key, certificate and revocation list, the peers' CA, the first
//! node's record and certificate, its join key, the owner, the configuration and the first member list are created together or
//! not at all, so that there is no half-made cluster to find after a crash (windows S6, W3, W6, W13 of `crash-windows.md`).
//!
//! From then on one node **leads** ([`Leadership`]): it alone changes the state, and every change that it makes is a
//! transaction that happens only while it leads ([`LeaderState`]). All nodes with a consensus member follow the state
//! ([`Nodes`]). [`Curator`] is the runnable that does all this on a node.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as polis_curator;

mod adopt;
mod alone;
mod birth;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod curator;
mod heartbeat;
pub mod layout;
mod leadership;
pub mod membership;
pub mod services;
mod state;
mod store;
mod tombstone;
mod watch;

pub use adopt::{AdoptError, Adopted, Newcomer, adopt, wanted_of_nodes};
pub use alone::{KnownHistory, LeaveAloneError, LeftAlone, leave_alone};
pub use birth::{Birth, BirthError, Cluster, PeerAuthority, create_cluster};
pub use curator::{Curator, Settings};
pub use heartbeat::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Heartbeats};
pub use leadership::{ClaimError, Leadership, LeadershipTiming, Seen, claim};
pub use state::{
    LeaderState, NodeRecord, NodeRecordError, RevocationChange, State, StateError, UPDATE_ATTEMPTS, Versioned,
};
pub use store::{ClusterStore, Creation, Entry, StoreError};
pub use tombstone::{InvalidTombstone, SignedTombstone, Tombstone};
pub use watch::{AllNodes, Changes, ClusterOrders, ConsensusMember, NodeSubscription, NodeView, Nodes, RecordChange};
