//! Tells the cluster where this node is and what it runs, whenever that has changed.

use std::sync::Arc;

use polis_proto::common::NodeStatus;
use polis_proto::common::node_status::RunningCurator;
use polis_proto::curator_api::UpdateNodeStatusRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_rpc::{CURATOR_PORT, CallError};
use polis_supervisor::{Context, RunnableResult};

use super::never;
use crate::pause::Pause;
use crate::shared::{CALL, Shared, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut address = shared.settings.address.clone();
    let mut curator = shared.settings.control_plane.curator();
    let push = async {
        let mut pause = Pause::default();
        let mut told = None;
        loop {
            let now = *address.borrow_and_update();
            let running_curator =
                curator.borrow_and_update().is_some().then_some(RunningCurator { port: i32::from(CURATOR_PORT) });
            // A node without an address has nothing to tell that others could use.
            let status = now.map(|address| NodeStatus {
                external_address: address.to_string(),
                running_curator,
                timestamp: None,
                version: Some(shared.settings.version.clone()),
                boot_id: shared.boot_id.to_vec(),
            });
            if let Some(status) = status.filter(|status| told.as_ref() != Some(status)) {
                let node_id = identity.node_id().to_string();
                let request = UpdateNodeStatusRequest { node_id, status: Some(status.clone()) };
                let pushed = cluster.call(CALL, |channel| {
                    let request = request.clone();
                    async move { CuratorClient::new(channel).update_node_status(request).await }
                });
                match pushed.await {
                    Ok(_) => {
                        told = Some(status);
                        pause.reset();
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot tell the cluster the status of this node; it is tried again");
                        if let CallError::Refused { status, .. } = &error {
                            shared.look_at_refusal(context.conditions(), &identity, status).await;
                        }
                        pause.wait().await;
                        continue;
                    }
                }
            }
            tokio::select! {
                () = changed(&mut address) => {}
                () = changed(&mut curator) => {}
            }
        }
    };
    never(context.unless_cancelled(push).await?)
}
