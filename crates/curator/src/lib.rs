//! The state of a cluster as it lies in etcd: its layout, and its birth in one transaction.
//!
//! A cluster begins to exist by [`create_cluster`]: CA key, certificate and revocation list, the peers' CA, the first
//! node's record and certificate, its join key, the owner and the configuration are created together or not at all, so
//! that there is no half-made cluster to find after a crash (windows S6, W3, W6, W13 of `crash-windows.md`).

#![forbid(unsafe_code)]

mod birth;
pub mod layout;
mod store;

pub use birth::{Birth, BirthError, Cluster, PeerAuthority, create_cluster};
pub use store::{ClusterStore, Creation, Entry, StoreError};
