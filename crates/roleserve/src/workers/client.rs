//! Runs the client of the cluster, which finds the leader for all workers.

use std::sync::Arc;

use polis_rpc::{ClientIdentity, ClusterClient, Search};
use polis_supervisor::{Context, RunnableResult};

use super::judge::LeaderJudge;
use crate::identity::Identity;
use crate::shared::Shared;

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let judge = LeaderJudge::new(&shared, &identity);
    let known = shared.cluster.borrow().clone();
    let cluster = match known {
        // A life before has made it, and others use it.
        Some(cluster) => cluster,
        None => {
            let shown = ClientIdentity::node(&identity.key, &identity.certificate)?;
            let (authority, endpoints) = (identity.authority.clone(), shared.addresses.endpoints());
            let cluster = ClusterClient::judged(shown, authority, endpoints, Arc::new(judge.clone()));
            shared.cluster.send_replace(Some(cluster.clone()));
            cluster
        }
    };
    context.healthy();
    tokio::select! {
        cancelled = context.cancelled() => Err(cancelled.into()),
        never = cluster.run() => match never {},
        () = listen(&shared, &identity, &cluster, &judge) => Err("the search for the leader has ended".into()),
    }
}

/// A node that was deleted is told so already by those whom it asks for the leader; it believes those whom it would follow.
async fn listen(shared: &Shared, identity: &Identity, cluster: &ClusterClient, judge: &LeaderJudge) {
    let mut search = cluster.search();
    loop {
        let removed = match &*search.borrow_and_update() {
            Search::Searching { since, failures, .. } if judge.believes_the_unseen(*since) => {
                failures.values().find_map(|failure| failure.removed.clone())
            }
            Search::Searching { .. } | Search::Found(_) => None,
        };
        if let Some(removed) = removed {
            shared.take_tombstone(identity, &removed.signed_tombstone);
        }
        if search.changed().await.is_err() {
            return;
        }
    }
}
