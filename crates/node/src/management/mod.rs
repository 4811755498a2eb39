//! What operators ask of this one node: NodeManagement (metropolis.md J.2) and the Node service of Polis, on port 7839.

mod log_entry;
mod logs;
mod logs_request;
mod places;
mod reboot;

use std::sync::Arc;
use std::time::Duration;

use polis_control::Status as NodeStatus;
use polis_logtree::LogTree;
use polis_proto::api::node_management_server::{NodeManagement, NodeManagementServer};
use polis_proto::api::{LogsRequest, RebootRequest, RebootResponse, UpdateNodeRequest, UpdateNodeResponse};
use polis_proto::node_api::node_server::{Node, NodeServer};
use polis_proto::node_api::{GetStatusRequest, GetStatusResponse};
use polis_supervisor::Context;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::power::{End, Power};
use logs::{LogStream, Logs};

/// How long after its answer a node begins to end. The answer is on its way within a millisecond; half a second carries it over
/// any link on which an operator would wait for it.
const END_DELAY: Duration = Duration::from_millis(500);

/// Tells how the node is now.
pub(crate) type GetNodeStatus = Arc<dyn Fn() -> NodeStatus + Send + Sync>;

/// What the services work with.
pub(crate) struct Management {
    pub(crate) log_tree: LogTree,
    pub(crate) status: GetNodeStatus,
    pub(crate) power: Power,
}

impl Management {
    /// The services, to be served under `context`.
    pub(crate) fn routes(self, context: &Context) -> Routes {
        let Self { log_tree, status, power } = self;
        let management = Service { logs: Logs::new(log_tree), power, context: context.clone() };
        Routes::new(NodeManagementServer::new(management)).add_service(NodeServer::new(StatusService { status }))
    }
}

struct Service {
    logs: Logs,
    power: Power,
    context: Context,
}

#[tonic::async_trait]
impl NodeManagement for Service {
    type LogsStream = LogStream;

    async fn logs(&self, request: Request<LogsRequest>) -> Result<Response<LogStream>, Status> {
        self.logs.read(request.into_inner()).map(Response::new)
    }

    async fn update_node(&self, _request: Request<UpdateNodeRequest>) -> Result<Response<UpdateNodeResponse>, Status> {
        Err(Status::unimplemented(
            "this node runs as a daemon: its version is changed by whatever installed Polis on this machine, and a restart",
        ))
    }

    async fn reboot(&self, request: Request<RebootRequest>) -> Result<Response<RebootResponse>, Status> {
        let end = reboot::end(request.into_inner())?;
        let name = match end {
            End::Stop => "stop",
            End::Restart => "restart",
        };
        tracing::info!("asked to {name} by an operator");
        let (context, power) = (self.context.clone(), self.power.clone());
        self.context.spawn(async move {
            context.unless_cancelled(tokio::time::sleep(END_DELAY)).await?;
            power.request(end);
            Ok(())
        });
        Ok(Response::new(RebootResponse {}))
    }
}

struct StatusService {
    status: GetNodeStatus,
}

#[tonic::async_trait]
impl Node for StatusService {
    async fn get_status(&self, _request: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let status_json = serde_json::to_string(&(self.status)())
            .map_err(|error| Status::internal(format!("the status of this node has no JSON form: {error}")))?;
        Ok(Response::new(GetStatusResponse { status_json, version: polis_version::text().to_owned() }))
    }
}

#[cfg(test)]
mod tests;
