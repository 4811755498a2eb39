//! Enrolment: what nodes and their cluster tell each other that the wire contract has no place for
//! (`polis/enrolment/v1/enrolment.proto`).

pub(super) mod members;
mod orders;
mod replacement;
mod report;
mod tombstone;
mod unlock_key;

use std::sync::Arc;

use futures::stream::BoxStream;
use polis_proto::enrolment::enrolment_server::Enrolment;
use polis_proto::enrolment::{
    CheckUnlockKeyRequest, CheckUnlockKeyResponse, GetMembersRequest, GetMembersResponse, GetTombstoneRequest,
    GetTombstoneResponse, Orders, ProposeOwnerRequest, ProposeOwnerResponse, ReplaceMemberRequest,
    ReplaceMemberResponse, ReportNodeRequest, ReportNodeResponse, StoreRecoveryBlobRequest, StoreRecoveryBlobResponse,
    StoreUnlockKeyRequest, StoreUnlockKeyResponse, WatchOrdersRequest,
};
use polis_rpc::Caller;
use tonic::{Request, Response, Status};

use super::core::{Core, calling_node, parse_key};
use super::object::tell;
use super::{owner, recovery};

/// Enrolment.
pub(super) struct EnrolmentService(pub(super) Arc<Core>);

#[tonic::async_trait]
impl Enrolment for EnrolmentService {
    type WatchOrdersStream = BoxStream<'static, Result<Orders, Status>>;

    async fn report_node(&self, request: Request<ReportNodeRequest>) -> Result<Response<ReportNodeResponse>, Status> {
        let node = calling_node(&request)?;
        report::report(&self.0, &self.0.leader()?, &node.id, &request.into_inner()).await.map(Response::new)
    }

    async fn get_members(&self, _: Request<GetMembersRequest>) -> Result<Response<GetMembersResponse>, Status> {
        members::members(&self.0, &self.0.leader()?).await.map(Response::new)
    }

    async fn watch_orders(
        &self,
        request: Request<WatchOrdersRequest>,
    ) -> Result<Response<Self::WatchOrdersStream>, Status> {
        let node = Caller::of(&request).peer.node();
        Ok(Response::new(orders::watch(&self.0, node)?))
    }

    async fn get_tombstone(
        &self,
        request: Request<GetTombstoneRequest>,
    ) -> Result<Response<GetTombstoneResponse>, Status> {
        tombstone::tombstone(&self.0, &request.into_inner()).await.map(Response::new)
    }

    async fn propose_owner(
        &self,
        request: Request<ProposeOwnerRequest>,
    ) -> Result<Response<ProposeOwnerResponse>, Status> {
        tell(&request);
        let node = calling_node(&request)?;
        let leader = self.0.leader()?;
        let key = parse_key("public_key", &request.into_inner().public_key)?;
        let voters: Vec<_> = members::list(&self.0).await?.into_iter().filter(|member| !member.is_learner).collect();
        let voters: Vec<_> = voters.into_iter().map(|member| member.node_id).collect();
        if !voters.contains(&node.id) {
            return Err(Status::failed_precondition(format!(
                "{} is no consensus member with a vote, and only those decide about the owner",
                node.id
            )));
        }
        let needed = owner::proposals_needed(voters.len());
        let proposed = owner::propose(&leader, &node.id, &key, &voters, needed).await?;
        // Whoever reads the log must see this, as it is how a cluster gets into other hands.
        if proposed.replaced {
            tracing::warn!("the cluster has a new owner, {key}: a quorum of its consensus members has said so");
        } else {
            let count = proposed.proposals;
            tracing::warn!("{} wants {key} to be the owner; {count} of the {needed} needed members do", node.id);
        }
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Response::new(ProposeOwnerResponse {
            proposals: count(proposed.proposals),
            needed: count(needed),
            replaced: proposed.replaced,
        }))
    }

    async fn store_unlock_key(
        &self,
        request: Request<StoreUnlockKeyRequest>,
    ) -> Result<Response<StoreUnlockKeyResponse>, Status> {
        let node = calling_node(&request)?;
        unlock_key::store(&self.0.leader()?, &node.id, request.into_inner()).await.map(Response::new)
    }

    async fn store_recovery_blob(
        &self,
        request: Request<StoreRecoveryBlobRequest>,
    ) -> Result<Response<StoreRecoveryBlobResponse>, Status> {
        let node = calling_node(&request)?;
        recovery::store_blob(&self.0.leader()?, &node.id, request.into_inner()).await.map(Response::new)
    }

    async fn replace_member(
        &self,
        request: Request<ReplaceMemberRequest>,
    ) -> Result<Response<ReplaceMemberResponse>, Status> {
        let node = calling_node(&request)?;
        replacement::replace(&self.0, &self.0.leader()?, &node.id, &request.into_inner()).await.map(Response::new)
    }

    async fn check_unlock_key(
        &self,
        request: Request<CheckUnlockKeyRequest>,
    ) -> Result<Response<CheckUnlockKeyResponse>, Status> {
        let node = calling_node(&request)?;
        unlock_key::check(&self.0, &self.0.leader()?, &node.id).await.map(Response::new)
    }
}
