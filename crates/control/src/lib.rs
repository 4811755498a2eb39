//! How the commands on a node ask the running node about itself: the control socket and what travels over it.
//!
//! The socket is `DIR/ephemeral/control.sock`, mode 0600. A client sends one [`Request`] as a line of JSON and receives
//! [`Status`] values, one line of JSON each: one, or, when it asked to follow, one now and one after every change. The
//! crate holds both ends of the wire, so that the node and the client need to know nothing else of each other.

#![forbid(unsafe_code)]

mod client;
mod socket;
mod status;

pub use client::{Client, ClientError};
pub use socket::{SocketError, bind};
pub use status::{
    ConsensusMember, ConsensusStatus, EnrolmentPhase, LAST_STATE_FILE, LastState, NodeState, Status, StorageStatus,
};

use serde::{Deserialize, Serialize};

/// Version of the protocol on the socket. A node refuses a request of another version.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest line in either direction, in bytes. A status with every condition that a node can hold stays below it.
pub const MAX_LINE_LENGTH: usize = 1 << 20;

/// Where the socket lies below the node's root.
pub const SOCKET_DIRECTORY: &str = "ephemeral";

/// Name of the socket in [`SOCKET_DIRECTORY`].
pub const SOCKET_NAME: &str = "control.sock";

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u32,
    /// Send the status again after every change, until the client hangs up.
    pub follow: bool,
}
