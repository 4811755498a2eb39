//! Follows what the cluster has recorded about this node.

use std::sync::Arc;

use async_trait::async_trait;
use polis_condition::Conditions;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::watch_request::{Kind, NodeInCluster};
use polis_proto::curator_api::{WatchEvent, WatchRequest};
use polis_supervisor::{BoxError, Context, RunnableResult};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::follow::{Follower, follow};
use crate::identity::Identity;
use crate::shared::{OwnRecord, Shared, UNKNOWN_TO_CLUSTER};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut follower = Record { shared: &shared, identity: &identity, conditions: context.conditions() };
    Err(context.unless_cancelled(follow(&shared, &context, &identity, &cluster, &mut follower)).await?)
}

struct Record<'a> {
    shared: &'a Shared,
    identity: &'a Identity,
    conditions: &'a Conditions,
}

#[async_trait]
impl Follower for Record<'_> {
    type Message = WatchEvent;
    const WHAT: &'static str = "this node's record";

    async fn open(&self, channel: Channel) -> Result<Streaming<WatchEvent>, Status> {
        let node_id = self.identity.node_id().to_string();
        let kind = Some(Kind::NodeInCluster(NodeInCluster { node_id }));
        Ok(CuratorClient::new(channel).watch(WatchRequest { kind }).await?.into_inner())
    }

    async fn take(&mut self, event: WatchEvent) -> Result<(), BoxError> {
        let own = self.identity.node_id().to_string();
        if let Some(node) = event.nodes.into_iter().rfind(|node| node.id == own) {
            self.conditions.clear(UNKNOWN_TO_CLUSTER);
            let record = OwnRecord { roles: node.roles.unwrap_or_default() };
            self.shared.record.send_if_modified(|known| {
                let news = known.as_ref() != Some(&record);
                *known = Some(record);
                news
            });
        } else if event.node_tombstones.iter().any(|tombstone| tombstone.node_id == own) {
            self.shared.ask_for_tombstone(self.conditions, self.identity).await;
        }
        Ok(())
    }

    /// What was recorded last counts until something else is.
    fn lose(&mut self) {}
}
