//! Tests of whole members, with the real etcd.

mod alone;
mod client;
mod cluster;
mod damage;
mod faults;
mod node;
mod peers;
mod quota;
mod removed;
mod room;
mod survey;
mod three;
