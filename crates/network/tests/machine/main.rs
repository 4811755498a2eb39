//! The network of a machine of its own, with real interfaces in network namespaces: the machine's own one, and one for whatever
//! is on the other end of its cables.

#[path = "../namespace/namespace.rs"]
mod namespace;

mod dhcp;
mod dnsmasq;
mod fixed;
mod node;
mod outside;
mod server;
