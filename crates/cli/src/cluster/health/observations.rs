//! What was seen of a cluster. An answer that is missing is an observation too.

use std::net::SocketAddr;

use jiff::Timestamp;
use polis_control::Status;

use crate::cluster::StatusDocument;
use crate::fleet::NodeDocument;

/// Everything that was seen, at about the same time.
#[derive(Clone, Debug)]
pub(super) struct Observations {
    /// When, by the clock of this machine.
    pub(super) at: Timestamp,
    pub(super) endpoints: Vec<EndpointObservation>,
    pub(super) cluster: ClusterObservation,
    pub(super) nodes: Vec<NodeObservation>,
}

/// What an endpoint said of itself.
#[derive(Clone, Debug)]
pub(super) struct EndpointObservation {
    pub(super) address: SocketAddr,
    /// Who it is and whom it follows, or why that is not known.
    pub(super) answer: Result<EndpointAnswer, String>,
}

#[derive(Clone, Debug)]
pub(super) struct EndpointAnswer {
    /// Absent when it does not say.
    pub(super) node_id: Option<String>,
    /// Id of the node that leads, or why it knows none.
    pub(super) leader: Result<String, String>,
}

/// What the leader said, each question for itself, or why there was no answer.
#[derive(Clone, Debug)]
pub(super) struct ClusterObservation {
    pub(super) nodes: Result<Vec<NodeDocument>, String>,
    pub(super) status: Result<StatusDocument, String>,
}

/// What a node said of itself.
#[derive(Clone, Debug)]
pub(super) struct NodeObservation {
    pub(super) node_id: String,
    pub(super) status: Result<Status, String>,
}
