//! The owner of a cluster, who calls its nodes from within this process: what a command would take to start is not measured.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures::{StreamExt as _, stream};
use polis_identity::{AuthorityCertificate, Certificate, OwnerKey, verify_certificate_authority};
use polis_proto::api::aaa_client::AaaClient;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::update_node_labels_request::{Node, Pair};
use polis_proto::api::{EscrowRequest, UpdateNodeLabelsRequest, escrow_request};
use polis_proto::curator_api::GetCaCertificateRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::BenchError;
use crate::child::PATIENCE;
use crate::place::Place;
use crate::poll;

/// The only identity that there is (metropolis.md G.4).
const OWNER: &str = "owner";

/// The label that a Management write sets.
const LABEL: &str = "bench";

/// Someone with the owner's certificate of one cluster.
pub(crate) struct Owner {
    identity: ClientIdentity,
    pub(crate) authority: AuthorityCertificate,
}

impl Owner {
    /// Takes the cluster that the node at this address has founded, as soon as that has a leader.
    pub(crate) async fn take(place: &Place, address: IpAddr) -> Result<Self, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::try_to_take(place, address).await {
                Err(error) if is_unavailable(&error) && Instant::now() < deadline => sleep(poll::INTERVAL).await,
                taken => return taken,
            }
        }
    }

    async fn try_to_take(place: &Place, address: IpAddr) -> Result<Self, BenchError> {
        let key = OwnerKey::from_pem(&fs::read_to_string(&place.owner_key)?)?;
        let stranger = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody).channel(curator(address));
        let shown =
            CuratorLocalClient::new(stranger).get_ca_certificate(GetCaCertificateRequest {}).await?.into_inner();
        let authority = verify_certificate_authority(Certificate::from_der(shown.identity_ca_certificate)?)?;
        let expected = ExpectedServer::Cluster(authority.clone());
        let channel = Connector::new(&ClientIdentity::ephemeral(&key), expected).channel(curator(address));
        let parameters = escrow_request::Parameters {
            requested_identity_name: OWNER.to_owned(),
            public_key: key.public().as_bytes().to_vec(),
        };
        let request = EscrowRequest { parameters: Some(parameters), proofs: None };
        // The end of the requests would tell the server that nothing more is to be had from us.
        let requests = stream::iter([request]).chain(stream::pending());
        let mut answers = AaaClient::new(channel).escrow(requests).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            if !answer.emitted_certificate.is_empty() {
                let certificate = Certificate::from_der(answer.emitted_certificate)?;
                return Ok(Self { identity: ClientIdentity::user(&key, &certificate)?, authority });
            }
        }
        Err("the cluster gave its owner no certificate".into())
    }

    /// A channel to the curator at this address. It connects when it is used, and again after its connection was lost.
    pub(crate) fn channel(&self, address: IpAddr) -> Channel {
        Connector::new(&self.identity, ExpectedServer::Cluster(self.authority.clone())).channel(curator(address))
    }
}

/// Whether somebody has answered that it is too early.
fn is_unavailable(error: &BenchError) -> bool {
    error.downcast_ref::<Status>().is_some_and(|status| status.code() == Code::Unavailable)
}

/// Where the curator of the node at this address is.
pub(crate) fn curator(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, CURATOR_PORT)
}

/// Makes a Management write: whether it was answered OK. Each sets a value of its own, so that each is a write.
pub(crate) async fn write(channel: Channel, node_id: String) -> bool {
    static VALUES: AtomicU64 = AtomicU64::new(0);
    let value = VALUES.fetch_add(1, Ordering::Relaxed).to_string();
    let request = UpdateNodeLabelsRequest {
        node: Some(Node::Id(node_id)),
        upsert: vec![Pair { key: LABEL.to_owned(), value }],
        delete: Vec::new(),
    };
    ManagementClient::new(channel).update_node_labels(request).await.is_ok()
}
