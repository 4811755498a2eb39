//! The network of a machine of its own (metropolis.md D.2 to D.4).
//!
//! A [`MachineNetwork`] is given to [`Network::new`](crate::Network::new) as
//! [`AddressSource::Machine`](crate::AddressSource::Machine), and its runnable then makes the network: it reads what the kernel
//! has, plans what is missing, does that, and waits for the next change. Every look starts from what there is, so that a runnable
//! that died, or a device that comes late, needs no case of its own; and what the node did not make is never removed.
//!
//! # Without a static configuration
//!
//! Every Ethernet device is taken up (hardware, and the inner ends of virtual cables: not bonds, bridges or VLANs that somebody
//! made), now or when it appears, and those with a carrier ask for an address by DHCP. With one cable in one of several devices
//! that is what an operator expects; with several the **first lease is the node's address**, and the default route through it is
//! the best one. It stays so while that lease is held, however many others come; when it is lost the next in line takes over at
//! once, and one that comes back goes to the end of the line, so that the address does not move back and forth.
//!
//! # With one
//!
//! It is carried out and nothing else: devices that it does not name are left as they are, and the names of its interfaces
//! become those of the kernel. The address of the node is the first static IPv4 address (else IPv6), unless an interface has
//! `ipv4_autoconfig`: then DHCP decides. A device that it names and the machine does not have is the condition
//! [`DEVICE_MISSING`], with the devices that it has; all else is carried out, and the rest when the device appears.
//!
//! # DHCP
//!
//! States and times are those of metropolis.md D.3, RFC 2131 without INIT-REBOOT. The identity of the machine towards the
//! servers is its hardware address, sent as the client identifier, too: it is there before anything is durable, and is the same
//! at every boot. (A bond takes that of its first member for good, so that it does not depend on which device comes first.)
//!
//! * An address that is given at renewal is taken on before the old one goes. A server that refuses a renewal makes the client
//!   ask anew at once; the old address stays meanwhile, for a few seconds at most.
//! * A lease that is lost (it ran out, or the link had no carrier for longer than a switch needs to start) is withdrawn and the
//!   address published as absent. The node keeps running, and asks on.
//! * The kernel knows how long each address is valid, and removes it also when nobody here lives any more to do it.
//! * Routes are those of option 121, or the router and static routes where there is none (RFC 3442).
//! * New addresses are announced by ARP, so that nobody on the link keeps an old hardware address for them.
//!
//! # How it is built
//!
//! `dhcp` is the client without I/O and `plan` the static configuration as a list of operations: both are values in, values
//! out. `client` gives the former a socket, `execute` carries the latter out, `service` is the loop around everything.

mod announce;
mod choice;
mod client;
mod conditions;
mod dhcp;
mod execute;
mod frame;
mod kept;
mod kernel;
mod lease_keeper;
mod plan;
#[cfg(test)]
mod plan_tests;
mod service;
mod switches;

use polis_network_configuration::NetworkConfiguration;

pub use conditions::{CONFIGURATION_REFUSED, DEVICE_MISSING, DHCP_LEASE_LOST, DHCP_NO_ANSWER};
pub use kept::{KeptConfigurationError, keep_configuration};
pub(crate) use service::Memory;

/// Who this is, for DHCP servers that treat machines by what they are (option 60).
pub const VENDOR_CLASS: &str = "dev.polis.node.v1";

/// How the network of this machine is to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineNetwork {
    /// The static configuration; with none, every Ethernet device asks for an address by DHCP.
    /// [`keep_configuration`] tells which one is in force.
    pub configuration: Option<NetworkConfiguration>,
}
