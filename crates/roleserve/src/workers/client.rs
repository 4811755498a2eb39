//! Runs the client of the cluster, which finds the leader for all workers.

use std::sync::Arc;

use polis_rpc::{ClientIdentity, ClusterClient, Search};
use polis_supervisor::{Context, RunnableResult};

use crate::identity::Identity;
use crate::shared::Shared;

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let known = shared.cluster.borrow().clone();
    let cluster = match known {
        // A life before has made it, and others use it.
        Some(cluster) => cluster,
        None => {
            let shown = ClientIdentity::node(&identity.key, &identity.certificate)?;
            let cluster = ClusterClient::new(shown, identity.authority.clone(), shared.addresses.endpoints());
            shared.cluster.send_replace(Some(cluster.clone()));
            cluster
        }
    };
    context.healthy();
    tokio::select! {
        cancelled = context.cancelled() => Err(cancelled.into()),
        never = cluster.run() => match never {},
        () = listen(&shared, &identity, &cluster) => Err("the search for the leader has ended".into()),
    }
}

/// A node that was deleted is told so already by those whom it asks for the leader.
async fn listen(shared: &Shared, identity: &Identity, cluster: &ClusterClient) {
    let mut search = cluster.search();
    loop {
        let removed = match &*search.borrow_and_update() {
            Search::Searching { failures, .. } => failures.values().find_map(|failure| failure.removed.clone()),
            Search::Found(_) => None,
        };
        if let Some(removed) = removed {
            shared.take_tombstone(identity, &removed.signed_tombstone);
        }
        if search.changed().await.is_err() {
            return;
        }
    }
}
