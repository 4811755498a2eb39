//! The services of the curator (port 7835): Curator, CuratorLocal, AAA and Management of Metropolis, Enrolment and Cluster of
//! Polis (metropolis.md, G.4, and the schemas).
//!
//! The node that leads serves all of them. The others serve CuratorLocal and `GetTombstone`, and answer everything else with
//! UNAVAILABLE and a detail that names the leader; so does a node that has just lost the leadership, also at the end of streams.
//! Errors of the store are UNAVAILABLE, too: whatever a request says, it may be repeated.
//!
//! Who calls, and whether they may call at all, is decided before (`polis_rpc`). What is decided here is decided by functions
//! without I/O on what one transaction has read, and written by a transaction on the condition that it is still so; a request
//! that was overtaken is decided anew. Nothing is locked while a client is waited for. No request or answer is logged.

mod cluster;
mod clusternet;
mod configuration;
mod core;
mod curator;
mod enrolment;
mod escrow;
mod failure;
mod filter;
mod kubernetes;
mod labels;
mod leader;
mod local;
mod management;
mod object;
mod owner;
mod policy;
mod recovery;
mod refusal;
mod text;
mod ticket;

use std::net::IpAddr;
use std::sync::Arc;

use polis_consensus::Consensus;
use polis_proto::api::aaa_server::AaaServer;
use polis_proto::api::management_server::ManagementServer;
use polis_proto::cluster::cluster_server::ClusterServer;
use polis_proto::curator_api::curator_local_server::CuratorLocalServer;
use polis_proto::curator_api::curator_server::CuratorServer;
use polis_proto::enrolment::enrolment_server::EnrolmentServer;
use polis_rpc::ServerIdentity;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::Heartbeats;
use crate::leadership::Leadership;
use crate::membership::Members;
use crate::watch::Nodes;

/// Largest request that is read, in bytes. The largest that makes sense, a new configuration with all its rules, is half of it.
const MAX_REQUEST_SIZE: usize = 512 * 1024;

/// What the services need of the node that serves them. All of it is shared.
pub struct Services {
    /// Who leads, as this node knows it.
    pub leadership: watch::Receiver<Leadership>,
    /// The nodes of the cluster, followed.
    pub nodes: Nodes,
    /// When nodes were last heard of.
    pub heartbeats: Heartbeats,
    /// The own consensus member.
    pub consensus: Consensus,
    /// All consensus members, and how they change.
    pub members: Members,
    /// Who this node is, and its cluster's CA.
    pub identity: ServerIdentity,
    /// Where this node is.
    pub address: watch::Receiver<Option<IpAddr>>,
}

/// The services, to be served.
#[must_use]
pub fn routes(services: Services) -> Routes {
    let core = Arc::new(core::Core::new(services));
    let curator = CuratorServer::new(curator::CuratorService(Arc::clone(&core)));
    let local = CuratorLocalServer::new(local::CuratorLocalService(Arc::clone(&core)));
    let aaa = AaaServer::new(escrow::AaaService(Arc::clone(&core)));
    let management = ManagementServer::new(management::ManagementService(Arc::clone(&core)));
    let enrolment = EnrolmentServer::new(enrolment::EnrolmentService(Arc::clone(&core)));
    let cluster = ClusterServer::new(cluster::ClusterService(core));
    Routes::new(curator.max_decoding_message_size(MAX_REQUEST_SIZE))
        .add_service(local.max_decoding_message_size(MAX_REQUEST_SIZE))
        .add_service(aaa.max_decoding_message_size(MAX_REQUEST_SIZE))
        .add_service(management.max_decoding_message_size(MAX_REQUEST_SIZE))
        .add_service(enrolment.max_decoding_message_size(MAX_REQUEST_SIZE))
        .add_service(cluster.max_decoding_message_size(MAX_REQUEST_SIZE))
}
