//! The services of a curator that leads, over a real etcd, called over TLS with each kind of credential.

#[path = "../common/mod.rs"]
mod common;

mod decommission;
mod deletion;
mod follower;
mod kubernetes;
mod log;
mod management;
mod members;
mod networking;
mod nodes;
mod owner;
mod recovery;
mod registration;
mod replacement;
mod roles;
mod secrets;
mod splits;
mod status;
mod storage;
mod tickets;
mod tpm;
mod unlock_key;
mod watch;
mod world;
