//! Parameters of a node that asks a cluster for admission.

use std::fmt;
use std::net::IpAddr;

use polis_identity::{
    AuthorityCertificate, Certificate, NodeId, NotAnAuthorityError, ParseCertificateError, verify_certificate_authority,
};
use polis_proto::api::node_parameters::ClusterRegister;
use polis_proto::common::cluster_directory::Node;
use zeroize::Zeroizing;

use crate::{LabelFault, Labels, RegisterTicket, TicketError};

/// Which cluster to ask, where, and with what. The ticket is a secret, so `Debug` does not show it.
#[derive(Clone)]
pub struct Register {
    /// Addresses at which nodes of the cluster may be found; never empty.
    pub addresses: Vec<IpAddr>,
    /// Those of these nodes whose id is told, which is only good for finding them again.
    pub known: Vec<KnownNode>,
    /// What the cluster wants to see.
    pub ticket: RegisterTicket,
    /// Certificate of the cluster's CA.
    pub certificate_authority: AuthorityCertificate,
    /// Good labels of this node.
    pub labels: Labels,
    /// Labels that were left out, and why.
    pub label_faults: Vec<LabelFault>,
}

/// A node of the cluster that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// Its id.
    pub id: NodeId,
    /// Where it may be found; never empty.
    pub addresses: Vec<IpAddr>,
}

/// What is wrong with `cluster_register`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// `ca_certificate` is not a certificate.
    #[error("ca_certificate is not a certificate")]
    Certificate(#[source] ParseCertificateError),
    /// `ca_certificate` is not the certificate of a CA.
    #[error("ca_certificate is not the certificate of a cluster CA")]
    CertificateAuthority(#[source] NotAnAuthorityError),
    /// `register_ticket` is not set.
    #[error("register_ticket is missing; the cluster would refuse this node without looking at it")]
    TicketMissing,
    /// `register_ticket` is not what a cluster hands out.
    #[error("register_ticket is not usable")]
    Ticket(#[source] TicketError),
    /// `cluster_directory` names no node.
    #[error("cluster_directory names no node, so there is nobody to ask")]
    DirectoryEmpty,
    /// A node of `cluster_directory` has no address.
    #[error("cluster_directory names the node {id:?} without an address")]
    NodeWithoutAddress {
        /// Its id.
        id: String,
    },
    /// An address of `cluster_directory` is not an IP address.
    #[error("cluster_directory names the node {id:?} with the address {host:?}, which is not an IP address")]
    NotAnAddress {
        /// Id of the node.
        id: String,
        /// What was given as its address.
        host: String,
    },
}

impl fmt::Debug for Register {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Register").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl TryFrom<ClusterRegister> for Register {
    type Error = RegisterError;

    fn try_from(message: ClusterRegister) -> Result<Self, RegisterError> {
        let certificate = Certificate::from_der(message.ca_certificate).map_err(RegisterError::Certificate)?;
        let certificate_authority =
            verify_certificate_authority(certificate).map_err(RegisterError::CertificateAuthority)?;
        let ticket = Zeroizing::new(message.register_ticket);
        if ticket.is_empty() {
            return Err(RegisterError::TicketMissing);
        }
        let ticket = RegisterTicket::from_bytes(&ticket).map_err(RegisterError::Ticket)?;
        let nodes = message.cluster_directory.unwrap_or_default().nodes;
        if nodes.is_empty() {
            return Err(RegisterError::DirectoryEmpty);
        }
        let (mut addresses, mut known) = (Vec::new(), Vec::new());
        for node in nodes {
            let id = node.id.parse().ok();
            let found = parse_addresses(node)?;
            addresses.extend_from_slice(&found);
            known.extend(id.map(|id| KnownNode { id, addresses: found }));
        }
        let (labels, label_faults) = Labels::from_wire(message.labels.unwrap_or_default());
        Ok(Self { addresses, known, ticket, certificate_authority, labels, label_faults })
    }
}

fn parse_addresses(node: Node) -> Result<Vec<IpAddr>, RegisterError> {
    let id = node.id;
    if node.addresses.is_empty() {
        return Err(RegisterError::NodeWithoutAddress { id });
    }
    let parse = |host: String| host.parse().map_err(|_| RegisterError::NotAnAddress { id: id.clone(), host });
    node.addresses.into_iter().map(|address| parse(address.host)).collect()
}
