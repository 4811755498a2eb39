//! IssueCertificate: certificates for the parts of Kubernetes that a node runs.

use polis_identity::NodeId;
use polis_proto::curator_api::issue_certificate_request::{self, Kind};
use polis_proto::curator_api::{IssueCertificateRequest, IssueCertificateResponse, issue_certificate_response};
use tonic::Status;

use crate::LeaderState;
use crate::services::core::{Core, parse_key};
use crate::services::kubernetes::{AUTHORITY, AUTHORITY_NAME, issue_worker};

/// Issues what the request asks for to the calling node.
pub(super) async fn issue(
    leader: &LeaderState,
    node: &NodeId,
    request: IssueCertificateRequest,
) -> Result<IssueCertificateResponse, Status> {
    match request.kind {
        Some(Kind::KubernetesWorker(keys)) => worker(leader, node, &keys).await,
        None => Err(Status::invalid_argument("kind is not set, or is of a kind that this version does not know")),
    }
}

async fn worker(
    leader: &LeaderState,
    node: &NodeId,
    keys: &issue_certificate_request::KubernetesWorker,
) -> Result<IssueCertificateResponse, Status> {
    let kubelet = parse_key("kubelet_pubkey", &keys.kubelet_pubkey)?;
    let csi_provisioner = parse_key("csi_provisioner_pubkey", &keys.csi_provisioner_pubkey)?;
    let netservices = parse_key("netservices_pubkey", &keys.netservices_pubkey)?;
    let Some(record) = leader.node(node).await? else { return Err(Core::unknown_node(leader, node).await?) };
    if record.value.roles.kubernetes_worker.is_none() {
        return Err(Status::permission_denied(format!("{node} does not have the role KubernetesWorker")));
    }
    let authority = leader.ensure_authority("curator/kubernetes/authority", AUTHORITY, AUTHORITY_NAME).await?;
    let issued = issue_worker(&authority, node, &kubelet, &csi_provisioner, &netservices);
    let kind = issue_certificate_response::Kind::KubernetesWorker(issue_certificate_response::KubernetesWorker {
        identity_ca_certificate: authority.certificate().der().to_vec(),
        kubelet_server_certificate: issued.kubelet_server.der().to_vec(),
        kubelet_client_certificate: issued.kubelet_client.der().to_vec(),
        csi_provisioner_certificate: issued.csi_provisioner.der().to_vec(),
        netservices_certificate: issued.netservices.der().to_vec(),
    });
    Ok(IssueCertificateResponse { kind: Some(kind) })
}
