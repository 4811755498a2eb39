//! The static configuration of a machine's network (metropolis.md D.4): the wire message `osbase.net.proto.Net`, parsed once
//! and for all.
//!
//! [`NetworkConfiguration::parse`] turns the bytes of a message into interfaces that are known to be good, or names the first
//! field that is not, with what would be good instead. The interfaces come in an order in which each stands behind those that
//! it is built on, so that nobody behind this crate has to look for cycles or for names that nobody has.
//!
//! What the machine has of all this is not known here: that a device exists is not a question of the configuration.

#![forbid(unsafe_code)]

mod error;
mod interface;
mod order;
mod parse;

use std::net::IpAddr;

use ipnet::IpNet;
use polis_proto::osbase::net::proto::Net;
use prost::Message as _;

pub use error::{ConfigurationError, Problem};
pub use interface::{
    Bond, BondMode, CarrierMonitor, Device, DeviceMatch, HardwareAddress, INTERFACE_NAME_LIMIT, Interface,
    InterfaceKind, Ipv6Privacy, LacpRate, LacpSelection, Route, TransmitHash, Vlan, VlanProtocol,
};

/// Most interfaces that a configuration may have. A machine has some dozens at most, and a message of nonsense must not keep it
/// busy.
pub const MAX_INTERFACES: usize = 256;

/// Most addresses, routes or members that one interface may have, and most name servers, for the same reason.
pub const MAX_ENTRIES: usize = 256;

/// A configuration that makes sense in itself. It has at least one interface.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfiguration {
    interfaces: Vec<Interface>,
    /// Names of the interfaces, in the order in which they were given.
    as_given: Vec<String>,
    nameservers: Vec<IpAddr>,
    /// As it came, so that it can be kept with what a newer build has put in.
    message: Vec<u8>,
}

impl NetworkConfiguration {
    /// Parses a serialized `osbase.net.proto.Net`.
    ///
    /// # Errors
    ///
    /// The first field that is wrong, by its name on the wire.
    pub fn parse(message: &[u8]) -> Result<Self, ConfigurationError> {
        let net = Net::decode(message).map_err(ConfigurationError::Malformed)?;
        let parse::Parsed { interfaces, nameservers } = parse::parse(&net)?;
        let as_given = net.interface.into_iter().map(|interface| interface.name).collect();
        Ok(Self { interfaces, as_given, nameservers, message: message.to_vec() })
    }

    /// Parses a message that has been taken out of another one.
    ///
    /// # Errors
    ///
    /// As [`NetworkConfiguration::parse`].
    pub fn from_wire(net: &Net) -> Result<Self, ConfigurationError> {
        Self::parse(&net.encode_to_vec())
    }

    /// The interfaces, each behind those that it is built on (VLANs behind their parents, bonds behind their members), else as
    /// they were given.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The static addresses of all interfaces, in the order in which they were given, with the interfaces that have them.
    pub fn addresses(&self) -> impl Iterator<Item = (&Interface, IpNet)> {
        let named = |name: &String| self.interfaces.iter().find(|interface| interface.name == *name);
        let interfaces = self.as_given.iter().filter_map(named);
        interfaces.flat_map(|interface| interface.addresses.iter().map(move |address| (interface, *address)))
    }

    /// The name servers, in the order in which they are to be asked. With none of its own the machine takes those that it is
    /// told of by DHCP.
    #[must_use]
    pub fn nameservers(&self) -> &[IpAddr] {
        &self.nameservers
    }

    /// Whether an interface asks for its IPv4 address by DHCP: then that one is the address of the node (metropolis.md D.4).
    #[must_use]
    pub fn uses_dhcp(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.ipv4_autoconfig)
    }

    /// The bond that the interface `name` is a member of.
    #[must_use]
    pub fn bond_of(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| match &interface.kind {
            InterfaceKind::Bond(bond) => bond.members.iter().any(|member| member == name),
            InterfaceKind::Device(_) | InterfaceKind::Vlan(_) => false,
        })
    }

    /// The serialized message from which this was parsed.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.message
    }
}
