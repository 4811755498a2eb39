//! Curator: what nodes ask of their cluster (metropolis.md, G.4).

mod commit;
mod heartbeat;
mod issue;
mod join;
mod networking;
mod register;
mod status;
mod watch;

use std::sync::Arc;

use futures::stream::BoxStream;
use polis_identity::{NodeId, PublicKey};
use polis_proto::curator_api::curator_server::Curator;
use polis_proto::curator_api::{
    CommitNodeRequest, CommitNodeResponse, GetConsensusStatusRequest, GetConsensusStatusResponse, HeartbeatRequest,
    HeartbeatResponse, IssueCertificateRequest, IssueCertificateResponse, JoinNodeRequest, JoinNodeResponse,
    RegisterNodeRequest, RegisterNodeResponse, UpdateNodeClusterNetworkingRequest, UpdateNodeClusterNetworkingResponse,
    UpdateNodeStatusRequest, UpdateNodeStatusResponse, WatchEvent, WatchRequest,
};
use polis_rpc::{AuditObject, Caller};
use tonic::{Request, Response, Status, Streaming};

use super::core::{Core, calling_key, calling_node};
use super::enrolment::members;

pub(super) use self::register::read_configuration;

/// Curator.
pub(super) struct CuratorService(pub(super) Arc<Core>);

#[tonic::async_trait]
impl Curator for CuratorService {
    type WatchStream = BoxStream<'static, Result<WatchEvent, Status>>;
    type HeartbeatStream = BoxStream<'static, Result<HeartbeatResponse, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(watch::watch(&self.0, request.into_inner())?))
    }

    async fn update_node_status(
        &self,
        request: Request<UpdateNodeStatusRequest>,
    ) -> Result<Response<UpdateNodeStatusResponse>, Status> {
        let node = calling_node(&request)?;
        status::update(&self.0.leader()?, &node.id, request.into_inner()).await.map(Response::new)
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let node = calling_node(&request)?;
        let address = Caller::of(&request).address.ip();
        Ok(Response::new(heartbeat::heartbeat(Arc::clone(&self.0), node.id, address, request.into_inner())?))
    }

    async fn register_node(
        &self,
        request: Request<RegisterNodeRequest>,
    ) -> Result<Response<RegisterNodeResponse>, Status> {
        let key = calling_key(&request).ok_or_else(no_own_certificate)?;
        tell_node(&request, &key);
        register::register(&self.0, &self.0.leader()?, key, request.into_inner()).await.map(Response::new)
    }

    async fn commit_node(&self, request: Request<CommitNodeRequest>) -> Result<Response<CommitNodeResponse>, Status> {
        let key = calling_key(&request).ok_or_else(no_own_certificate)?;
        tell_node(&request, &key);
        commit::commit(&self.0.leader()?, key, request.into_inner()).await.map(Response::new)
    }

    async fn join_node(&self, request: Request<JoinNodeRequest>) -> Result<Response<JoinNodeResponse>, Status> {
        // As Metropolis has it: PERMISSION_DENIED here, UNAUTHENTICATED in the two above.
        let key = calling_key(&request).ok_or_else(|| Status::permission_denied(no_own_certificate().message()))?;
        join::join(&self.0.leader()?, key, request.into_inner()).await.map(Response::new)
    }

    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        let node = calling_node(&request)?;
        issue::issue(&self.0.leader()?, &node.id, request.into_inner()).await.map(Response::new)
    }

    async fn update_node_cluster_networking(
        &self,
        request: Request<UpdateNodeClusterNetworkingRequest>,
    ) -> Result<Response<UpdateNodeClusterNetworkingResponse>, Status> {
        let node = calling_node(&request)?;
        networking::update(&self.0, &self.0.leader()?, &node.id, request.into_inner()).await.map(Response::new)
    }

    async fn get_consensus_status(
        &self,
        _: Request<GetConsensusStatusRequest>,
    ) -> Result<Response<GetConsensusStatusResponse>, Status> {
        self.0.leader()?;
        let etcd_member = members::list(&self.0).await?.iter().map(members::to_status).collect();
        Ok(Response::new(GetConsensusStatusResponse { etcd_member }))
    }
}

/// Says in the log which node the caller is to be.
fn tell_node<T>(request: &Request<T>, key: &PublicKey) {
    AuditObject::of(request).set(format_args!("node {}", NodeId::of(key)));
}

fn no_own_certificate() -> Status {
    Status::unauthenticated(
        "the caller must show a client certificate that is signed by the key itself, and none of the cluster",
    )
}
