//! What tests of whole nodes need: addresses of their own, nodes as real processes, their logs, their traces, and whole machines.
//!
//! Nothing here is part of a node. A test that ends, in whatever way, takes its processes and directories with it.

#![forbid(unsafe_code)]

pub mod address;
pub mod checks;
pub mod cluster;
pub mod confined;
pub mod damage;
pub mod etcd;
pub mod glance;
pub mod history;
pub mod host;
pub mod linearizability;
pub mod mounts;
pub mod node_caller;
pub mod node_data;
pub mod owner_client;
pub mod processes;
pub mod refusal;
pub mod scratch;
pub mod scripted;
pub mod secrets;
pub mod seed;
pub mod snapshot;
pub mod steps;
pub mod storage_security;
pub mod store;
pub mod trace;
pub mod unlock_caller;
pub mod vm;
pub mod workbench;
pub mod world;
pub mod writer;

pub use cluster::Cluster;
pub use host::{Host, NodeProcess};
pub use node_data::NodeData;
pub use steps::Steps;
pub use storage_security::StorageSecurity;
