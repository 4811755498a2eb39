//! Cluster: what operators need beyond Metropolis' Management (`polis/cluster/v1/cluster.proto`).

mod status;

use std::sync::Arc;

use polis_identity::StatementKind;
use polis_proto::cluster::cluster_server::Cluster;
use polis_proto::cluster::{
    ConfirmTwoRequest, ConfirmTwoResponse, GetRecoveryBlobRequest, GetRecoveryBlobResponse, GetStatusRequest,
    GetStatusResponse, RotateOwnerRequest, RotateOwnerResponse, RotateRegisterTicketRequest,
    RotateRegisterTicketResponse, SetRecoveryKeyRequest, SetRecoveryKeyResponse,
};
use polis_rpc::Caller;
use tonic::{Request, Response, Status};

use super::core::{Core, parse_id, parse_key};
use super::object::tell;
use super::{owner, recovery, ticket};

/// What the new owner's key signs, to show that it is at hand (`polis/cluster/v1/cluster.proto`): the cluster's id as text.
const ROTATION: StatementKind = StatementKind::new("polis owner rotation v1");

/// Cluster.
pub(super) struct ClusterService(pub(super) Arc<Core>);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        status::status(&self.0, &self.0.leader()?).await.map(Response::new)
    }

    async fn rotate_register_ticket(
        &self,
        request: Request<RotateRegisterTicketRequest>,
    ) -> Result<Response<RotateRegisterTicketResponse>, Status> {
        tell(&request);
        let ticket = ticket::rotate(&self.0.leader()?).await?;
        Ok(Response::new(RotateRegisterTicketResponse { ticket: ticket.to_bytes().to_vec() }))
    }

    async fn rotate_owner(
        &self,
        request: Request<RotateOwnerRequest>,
    ) -> Result<Response<RotateOwnerResponse>, Status> {
        tell(&request);
        let leader = self.0.leader()?;
        let caller = Caller::of(&request).to_string();
        let RotateOwnerRequest { public_key, proof } = request.into_inner();
        let key = parse_key("public_key", &public_key)?;
        let cluster_id = self.0.identity.authority().cluster_id().to_string();
        key.verify_statement(ROTATION, cluster_id.as_bytes(), &proof).map_err(|_| {
            Status::invalid_argument(
                "proof is not the new key's signature over this cluster's id, so the key is not at hand",
            )
        })?;
        let certificate = owner::rotate(&leader, &key).await?;
        tracing::warn!("the cluster has a new owner, {key}; asked for by {caller}");
        Ok(Response::new(RotateOwnerResponse { certificate: certificate.der().to_vec() }))
    }

    async fn confirm_two(&self, request: Request<ConfirmTwoRequest>) -> Result<Response<ConfirmTwoResponse>, Status> {
        tell(&request);
        let leader = self.0.leader()?;
        let caller = Caller::of(&request).to_string();
        let ConfirmTwoRequest { withdraw } = request.into_inner();
        recovery::confirm_two(&leader, &caller, withdraw).await?;
        Ok(Response::new(ConfirmTwoResponse {}))
    }

    async fn set_recovery_key(
        &self,
        request: Request<SetRecoveryKeyRequest>,
    ) -> Result<Response<SetRecoveryKeyResponse>, Status> {
        tell(&request);
        let leader = self.0.leader()?;
        let caller = Caller::of(&request).to_string();
        let replaced = recovery::set_key(&leader, &caller, &request.into_inner().public_key).await?;
        Ok(Response::new(SetRecoveryKeyResponse { replaced }))
    }

    async fn get_recovery_blob(
        &self,
        request: Request<GetRecoveryBlobRequest>,
    ) -> Result<Response<GetRecoveryBlobResponse>, Status> {
        tell(&request);
        let id = parse_id("node_id", &request.into_inner().node_id)?;
        recovery::blob(&self.0.leader()?, &id).await.map(Response::new)
    }
}
