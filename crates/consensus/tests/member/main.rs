//! Tests of whole members, with the real etcd.

mod alone;
mod client;
mod cluster;
mod faults;
mod node;
mod peers;
mod removed;
mod survey;
mod three;
