//! How the commands on a node deal with it: over its control socket while it runs, and with its files while it does not.
//!
//! The socket is `DIR/ephemeral/control.sock`, mode 0600. A client sends one [`Request`] as a line of JSON and receives
//! answers, one line of JSON each: one, or, when it asked to follow the status, one now and one after every change. The
//! crate holds both ends of the wire, so that the node and the client need to know nothing else of each other.
//!
//! # Versions
//!
//! Each request carries the version of the protocol. Version 1 knew only the status, in
//! the form `{"version":1,"follow":false}`, and answered with the bare [`Status`]; a node still answers it. Version 2 is
//! `{"version":2,"request":{..}}`, answered by `{"answer":..}` or `{"refusal":{"message":..,"hint":..}}`.
//!
//! What a command does to the files of a node that does not run is behind the trait [`NodeFiles`]: the commands know nothing
//! of what is in them.

#![forbid(unsafe_code)]

mod answer;
mod bundle;
mod client;
mod node_files;
mod peer;
mod recover;
mod redact;
mod report;
mod request;
mod socket;
mod status;

pub use answer::{Answer, Refusal};
pub use bundle::{Bundle, FileEntry};
pub use client::{Client, ClientError};
pub use node_files::{NodeFiles, NodeFilesError, Reset, ResetItem, ResetOutcome, ResetPlan};
pub use peer::{ParsePeerError, Peer};
pub use recover::{RecoverError, RecoverFound, RecoverReport, RecoverRequest, Recovery};
pub use redact::redact;
pub use report::{EtcdReport, JournalReport, OwnerProposed, ProcessReport, Report, RunnableReport};
pub use request::{Protocol, Request, RequestError};
pub use socket::{SocketError, bind};
pub use status::{
    ColdStart, ColdStartMode, ConsensusMember, ConsensusStatus, Contact, EnrolmentPhase, Epoch, LAST_STATE_FILE,
    LastState, LockState, LockStatus, NodeState, SharesStatus, SnapshotsStatus, SplitStatus, Status, StorageStatus,
};

/// Version of the protocol on the socket that this code speaks. A node also answers version 1.
pub const PROTOCOL_VERSION: u32 = 2;

/// Longest answer of a node in bytes, except for a report. A status with every condition that a node can hold stays below it.
pub const MAX_LINE_LENGTH: usize = 1 << 20;

/// Longest report in bytes: the newest lines of some hundred journals and the metrics of a node are about a tenth of it.
pub const MAX_REPORT_LENGTH: usize = 16 << 20;

/// Longest request in bytes: [`MAX_PEERS`] peers of 100 bytes each, and room.
pub const MAX_REQUEST_LENGTH: usize = 16 << 10;

/// Most peers that can be given: consensus has nine members at most, each of which may have had several addresses.
pub const MAX_PEERS: usize = 64;

/// Where the socket lies below the node's root.
pub const SOCKET_DIRECTORY: &str = "ephemeral";

/// Name of the socket in [`SOCKET_DIRECTORY`].
pub const SOCKET_NAME: &str = "control.sock";
