//! Management: what operators do with a cluster (metropolis.md, G.4).

mod approve;
mod configure;
mod decommission;
mod delete;
mod info;
mod labels;
mod nodes;
mod roles;
mod target;

use std::sync::Arc;

use futures::stream::BoxStream;
use polis_proto::api::management_server::Management;
use polis_proto::api::{
    ApproveNodeRequest, ApproveNodeResponse, ConfigureClusterRequest, ConfigureClusterResponse,
    DecommissionNodeRequest, DecommissionNodeResponse, DeleteNodeRequest, DeleteNodeResponse, GetClusterInfoRequest,
    GetClusterInfoResponse, GetNodesRequest, GetRegisterTicketRequest, GetRegisterTicketResponse, Node,
    UpdateNodeLabelsRequest, UpdateNodeLabelsResponse, UpdateNodeRolesRequest, UpdateNodeRolesResponse,
};
use polis_rpc::Caller;
use tonic::{Request, Response, Status};

use super::core::Core;
use super::object::tell;
use super::ticket;

pub(super) use self::target::{Target, target};

/// Management.
pub(super) struct ManagementService(pub(super) Arc<Core>);

#[tonic::async_trait]
impl Management for ManagementService {
    type GetNodesStream = BoxStream<'static, Result<Node, Status>>;

    async fn get_register_ticket(
        &self,
        request: Request<GetRegisterTicketRequest>,
    ) -> Result<Response<GetRegisterTicketResponse>, Status> {
        tell(&request);
        let ticket = ticket::get(&self.0.leader()?).await?;
        Ok(Response::new(GetRegisterTicketResponse { ticket: ticket.to_bytes().to_vec() }))
    }

    async fn get_cluster_info(
        &self,
        _: Request<GetClusterInfoRequest>,
    ) -> Result<Response<GetClusterInfoResponse>, Status> {
        info::info(&self.0, &self.0.leader()?).await.map(Response::new)
    }

    async fn get_nodes(&self, request: Request<GetNodesRequest>) -> Result<Response<Self::GetNodesStream>, Status> {
        nodes::nodes(&self.0, &self.0.leader()?, &request.into_inner().filter).await.map(Response::new)
    }

    async fn approve_node(
        &self,
        request: Request<ApproveNodeRequest>,
    ) -> Result<Response<ApproveNodeResponse>, Status> {
        tell(&request);
        approve::approve(&self.0.leader()?, &request.into_inner()).await.map(Response::new)
    }

    async fn update_node_roles(
        &self,
        request: Request<UpdateNodeRolesRequest>,
    ) -> Result<Response<UpdateNodeRolesResponse>, Status> {
        tell(&request);
        let leader = self.0.leader()?;
        let reason = reason(&request);
        roles::update(&self.0, &leader, request.into_inner(), &reason).await.map(Response::new)
    }

    async fn decommission_node(
        &self,
        request: Request<DecommissionNodeRequest>,
    ) -> Result<Response<DecommissionNodeResponse>, Status> {
        tell(&request);
        decommission::decommission(&self.0, &self.0.leader()?, request.into_inner()).await.map(Response::new)
    }

    async fn delete_node(&self, request: Request<DeleteNodeRequest>) -> Result<Response<DeleteNodeResponse>, Status> {
        tell(&request);
        let leader = self.0.leader()?;
        let reason = reason(&request);
        delete::delete(&self.0, &leader, request.into_inner(), &reason).await.map(Response::new)
    }

    async fn update_node_labels(
        &self,
        request: Request<UpdateNodeLabelsRequest>,
    ) -> Result<Response<UpdateNodeLabelsResponse>, Status> {
        tell(&request);
        labels::update(&self.0.leader()?, request.into_inner()).await.map(Response::new)
    }

    async fn configure_cluster(
        &self,
        request: Request<ConfigureClusterRequest>,
    ) -> Result<Response<ConfigureClusterResponse>, Status> {
        tell(&request);
        configure::configure(&self.0.leader()?, request.into_inner()).await.map(Response::new)
    }
}

/// Who asked, for what is written down about a change.
fn reason<T>(request: &Request<T>) -> String {
    format!("asked for by {}", Caller::of(request).peer)
}
