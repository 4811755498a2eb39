//! What operators ask of this one node: NodeManagement (metropolis.md J.2) and the Node service of Polis, on port 7839.

mod keys;
mod log_entry;
mod logs;
mod logs_request;
mod places;
mod reboot;
mod snapshot;
mod update;

use std::sync::Arc;
use std::time::Duration;

use polis_control::Status as NodeStatus;
use polis_identity::ClusterId;
use polis_logtree::LogTree;
use polis_proto::api::node_management_server::{NodeManagement, NodeManagementServer};
use polis_proto::api::{LogsRequest, RebootRequest, RebootResponse, UpdateNodeRequest, UpdateNodeResponse};
use polis_proto::node_api::node_server::{Node, NodeServer};
use polis_proto::node_api::{
    BootStatus, GetStatusRequest, GetStatusResponse, RekeyRequest, RekeyResponse, ResealRequest, ResealResponse,
    SaveSnapshotRequest,
};
use polis_rpc::AuditObject;
use polis_supervisor::Context;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::power::{End, Power};
use crate::update::{MachineOrders, explain};
use keys::Keys;
use logs::{LogStream, Logs};
use reboot::Host;
pub(crate) use snapshot::SnapshotFiles;
use snapshot::SnapshotStream;
use update::Activation;

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
    pub(crate) keys: Arc<dyn Keys>,
    /// The cluster of the node.
    pub(crate) cluster: ClusterId,
    pub(crate) snapshots: SnapshotFiles,
    /// The machine, if this node has one to itself.
    pub(crate) machine: Option<Arc<dyn MachineOrders>>,
}

impl Management {
    /// The services, to be served under `context`.
    pub(crate) fn routes(self, context: &Context) -> Routes {
        let Self { log_tree, status, power, keys, cluster, snapshots, machine } = self;
        let context = context.clone();
        let (of_machine, of_node) = (machine.clone(), context.clone());
        let node = NodeService { status, keys, cluster, snapshots, machine: of_machine, context: of_node };
        let management = Service { logs: Logs::new(log_tree), power, machine, context };
        Routes::new(NodeManagementServer::new(management)).add_service(NodeServer::new(node))
    }
}

struct Service {
    logs: Logs,
    power: Power,
    machine: Option<Arc<dyn MachineOrders>>,
    context: Context,
}

impl Service {
    /// Ends the node, once the answer is on its way.
    fn end(&self, end: End) {
        let name = match end {
            End::Stop => "stop",
            End::Restart => "restart",
            End::FirmwareMenu => "restart into the menu of the firmware",
            End::LoadedKernel => "go over to the next kernel",
        };
        tracing::info!("asked to {name} by an operator");
        let (context, power) = (self.context.clone(), self.power.clone());
        self.context.spawn(async move {
            context.unless_cancelled(tokio::time::sleep(END_DELAY)).await?;
            power.request(end);
            Ok(())
        });
    }
}

#[tonic::async_trait]
impl NodeManagement for Service {
    type LogsStream = LogStream;

    async fn logs(&self, request: Request<LogsRequest>) -> Result<Response<LogStream>, Status> {
        self.logs.read(request.into_inner()).map(Response::new)
    }

    async fn update_node(&self, request: Request<UpdateNodeRequest>) -> Result<Response<UpdateNodeResponse>, Status> {
        let machine = self.machine.as_ref().ok_or_else(update::no_machine)?;
        let object = AuditObject::of(&request);
        let (reference, activation) = update::order(request.into_inner())?;
        object.set(format_args!("{reference}, {activation:?}"));
        machine.update(&self.context, reference).await.map_err(|error| update::refusal(&error))?;
        match activation {
            Activation::Later => {}
            Activation::Restart => self.end(End::Restart),
            Activation::LoadedKernel => {
                machine.load_next_kernel(&self.context).await.map_err(|error| {
                    let refused = update::refusal(&error);
                    let text = format!(
                        "the image is installed, and is tried at the next restart; but it was not started at once: {}",
                        refused.message()
                    );
                    Status::new(refused.code(), text)
                })?;
                self.end(End::LoadedKernel);
            }
        }
        Ok(Response::new(UpdateNodeResponse {}))
    }

    async fn reboot(&self, request: Request<RebootRequest>) -> Result<Response<RebootResponse>, Status> {
        let host = self
            .machine
            .as_ref()
            .map_or(Host::Daemon, |machine| Host::Machine { has_firmware_menu: machine.has_firmware_menu() });
        let object = AuditObject::of(&request);
        let plan = reboot::plan(request.into_inner(), host)?;
        object.set(format_args!("{:?}{}", plan.end, if plan.roll_back { ", rolled back" } else { "" }));
        if let Some(machine) = &self.machine {
            if plan.roll_back {
                machine.roll_back(&self.context).await.map_err(|error| update::refusal(&error))?;
            }
            if plan.load_kernel {
                machine.load_next_kernel(&self.context).await.map_err(|error| update::refusal(&error))?;
            }
        }
        self.end(plan.end);
        Ok(Response::new(RebootResponse {}))
    }
}

struct NodeService {
    status: GetNodeStatus,
    keys: Arc<dyn Keys>,
    cluster: ClusterId,
    snapshots: SnapshotFiles,
    machine: Option<Arc<dyn MachineOrders>>,
    context: Context,
}

impl NodeService {
    async fn boot_status(&self) -> Option<BootStatus> {
        let status = self.machine.as_ref()?.boot_status(&self.context).await;
        status.inspect_err(|error| tracing::warn!("the boot slots cannot be told: {}", explain(error))).ok()
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    type SaveSnapshotStream = SnapshotStream;

    async fn get_status(&self, _request: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let status_json = serde_json::to_string(&(self.status)())
            .map_err(|error| Status::internal(format!("the status of this node has no JSON form: {error}")))?;
        let (version, boot) = (polis_version::text().to_owned(), self.boot_status().await);
        Ok(Response::new(GetStatusResponse { status_json, version, boot }))
    }

    async fn rekey(&self, _request: Request<RekeyRequest>) -> Result<Response<RekeyResponse>, Status> {
        tracing::info!("asked to replace the key of the data by an operator");
        keys::rekey(&*self.keys).await.map(Response::new)
    }

    async fn reseal(&self, _request: Request<ResealRequest>) -> Result<Response<ResealResponse>, Status> {
        tracing::info!("asked to renew the seal of the keys by an operator");
        keys::reseal(&*self.keys).await.map(Response::new)
    }

    async fn save_snapshot(&self, request: Request<SaveSnapshotRequest>) -> Result<Response<SnapshotStream>, Status> {
        let object = AuditObject::of(&request);
        let SaveSnapshotRequest { plaintext } = request.into_inner();
        let how = if plaintext { "in plaintext" } else { "encrypted to the recovery key" };
        object.set(how);
        tracing::info!("asked for a snapshot of the cluster's state, {how}, by an operator");
        self.snapshots.save(&self.context, self.cluster, plaintext).await.map(Response::new)
    }
}

#[cfg(test)]
mod tests;
