//! The end of a node's membership: from what the cluster says to what the Manager does about it.

use std::time::Duration;

use polis_manager::{EtcdProvider, Manager};
use polis_proto::curator_state::DecommissionPhase;
use polis_roleserve::{ControlPlane, Removal, RoleServe};
use polis_supervisor::{Backoff, BackoffSettings, Context, RunnableResult, with_causes};
use tokio::time::sleep;

/// Pauses between two attempts to tell the cluster how far the end of this node is. One that hears nothing of its leader has waited
/// already; one that is refused, as when the cluster was brought back from an older copy and knows nothing of the order, would else ask
/// again at once, for ever.
const PAUSES: BackoffSettings = BackoffSettings {
    initial: Duration::from_millis(250),
    multiplier: 2.0,
    randomization: 0.5,
    maximum: Duration::from_secs(10),
};

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
    until_told(|| async {
        let told = role_serve.report_decommission(phase).await;
        told.inspect_err(|error| {
            tracing::warn!(error = with_causes(error), ?phase, "the cluster could not be told; it is tried again");
        })
    })
    .await;
}

/// Tells again and again, with pauses, as a leader that refuses does so at once.
async fn until_told<T: Future<Output = Result<(), E>>, E>(mut tell: impl FnMut() -> T) {
    let mut pauses = Backoff::new(PAUSES);
    while tell().await.is_err() {
        sleep(pauses.next(rand::random())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_refuses_at_once_is_not_flooded() {
        let calls = Cell::new(0);
        let refused = until_told(|| async {
            calls.set(calls.get() + 1);
            Err(())
        });
        timeout(Duration::from_secs(60), refused).await.unwrap_err();
        assert!((6..30).contains(&calls.get()), "{} calls in a minute", calls.get());
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_the_cluster_was_told() {
        let calls = Cell::new(0);
        let told = until_told(|| async {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Err(()) } else { Ok(()) }
        });
        timeout(Duration::from_secs(60), told).await.unwrap();
        assert_eq!(calls.get(), 3);
    }
}
