//! The end of a node's membership: from what the cluster says to what the Manager does about it.

use polis_manager::{EtcdProvider, Manager};
use polis_proto::curator_state::DecommissionPhase;
use polis_roleserve::{ControlPlane, Removal, RoleServe};
use polis_supervisor::{Context, RunnableResult, with_causes};

/// Does what the cluster asks of a node that it lets go: a runnable. One that was deleted stops, also in the middle of
/// being decommissioned. One that is decommissioned says so, erases its keys, reports that, and stops (metropolis.md K2).
pub(crate) async fn keep(
    context: Context,
    manager: Manager<EtcdProvider>,
    role_serve: RoleServe,
    control_plane: ControlPlane,
) -> RunnableResult {
    context.healthy();
    let (mut removed, mut decommission) = (role_serve.removed(), role_serve.decommission());
    let removal = async {
        // The handle of the roles holds both senders.
        if let Ok(Some(removal)) = removed.wait_for(Option::is_some).await.map(|removal| removal.clone()) {
            manager.remove(removal.to_string());
        }
    };
    let decommissioning = async {
        let wanted = decommission.wait_for(|phase| match phase {
            DecommissionPhase::None | DecommissionPhase::Decommissioned => false,
            DecommissionPhase::Requested | DecommissionPhase::CleaningUp => true,
        });
        if wanted.await.is_err() {
            return;
        }
        tracing::warn!("the cluster has decommissioned this node: its keys are erased, and then it stops for good");
        report(&role_serve, DecommissionPhase::CleaningUp).await;
        // Its role was taken before, but it may still be on its way out, and what it leaves behind holds the cluster's keys.
        if control_plane.member().wait_for(Option::is_none).await.is_err() {
            return;
        }
        manager.erase_keys(Removal::Decommissioned.to_string()).await;
        // With this, the removal above follows.
        report(&role_serve, DecommissionPhase::Decommissioned).await;
    };
    context.unless_cancelled(async { tokio::join!(removal, decommissioning) }).await?;
    Err(context.cancelled().await.into())
}

/// Tells the cluster, for as long as it takes: without it, the cluster waits for this node.
async fn report(role_serve: &RoleServe, phase: DecommissionPhase) {
    while let Err(error) = role_serve.report_decommission(phase).await {
        tracing::warn!(error = with_causes(&error), ?phase, "the cluster could not be told; it is tried again");
    }
}
