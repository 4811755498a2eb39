//! Follows all nodes of the cluster: where they are, and which are no more.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::NodeId;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::watch_event::Progress;
use polis_proto::curator_api::watch_request::{Kind, NodesInCluster};
use polis_proto::curator_api::{WatchEvent, WatchRequest};
use polis_proto::enrolment::GetTombstoneRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::ClusterClient;
use polis_supervisor::{BoxError, Context, RunnableResult};
use prost::Message as _;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::follow::{Follower, follow};
use crate::addresses::Sighting;
use crate::shared::{CALL, Shared};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut follower = Nodes { shared: &shared, cluster: &cluster, backlog: Some(BTreeSet::new()) };
    Err(context.unless_cancelled(follow(&shared, &context, &identity, &cluster, &mut follower)).await?)
}

struct Nodes<'a> {
    shared: &'a Shared,
    cluster: &'a ClusterClient,
    /// The nodes that the present stream has told of, until it has told of all that there are.
    backlog: Option<BTreeSet<NodeId>>,
}

#[async_trait]
impl Follower for Nodes<'_> {
    type Message = WatchEvent;
    const WHAT: &'static str = "the nodes of the cluster";

    async fn open(&self, channel: Channel) -> Result<Streaming<WatchEvent>, Status> {
        let request = WatchRequest { kind: Some(Kind::NodesInCluster(NodesInCluster {})) };
        Ok(CuratorClient::new(channel).watch(request).await?.into_inner())
    }

    async fn take(&mut self, event: WatchEvent) -> Result<(), BoxError> {
        let complete = event.progress() == Progress::LastBacklogged;
        let sightings: Vec<Sighting> = event
            .nodes
            .iter()
            .filter_map(|node| {
                let address = node.status.as_ref().and_then(|status| status.external_address.parse().ok());
                Some(Sighting { node_id: node.id.parse().ok()?, public_key: None, address })
            })
            .collect();
        let gone: Vec<NodeId> =
            event.node_tombstones.iter().filter_map(|tombstone| tombstone.node_id.parse().ok()).collect();
        if let Some(backlog) = &mut self.backlog {
            backlog.extend(sightings.iter().map(|sighting| sighting.node_id));
        }
        let living = if complete { self.backlog.take() } else { None };
        self.shared.addresses.change(|known| {
            known.change_directory(|directory| {
                sightings.iter().for_each(|sighting| directory.learn(sighting));
                gone.iter().for_each(|node_id| directory.forget(*node_id));
                if let Some(living) = &living {
                    directory.retain(living);
                }
            });
        });
        for node_id in gone {
            self.remember_removed(node_id).await;
        }
        if complete {
            self.shared.trust_parts.send_modify(|parts| parts.nodes_fresh = true);
        }
        Ok(())
    }

    fn lose(&mut self) {
        self.backlog = Some(BTreeSet::new());
        self.shared.trust_parts.send_if_modified(|parts| std::mem::take(&mut parts.nodes_fresh));
    }
}

impl Nodes<'_> {
    /// A node was deleted while this one looked: it is refused from now on, and shown why. That it is revoked it learns with the
    /// orders in any case.
    async fn remember_removed(&self, node_id: NodeId) {
        let asked = self.cluster.call(CALL, |channel| async move {
            let request = GetTombstoneRequest { node_id: node_id.to_string() };
            EnrolmentClient::new(channel).get_tombstone(request).await
        });
        match asked.await.map(|answer| answer.into_inner().tombstone) {
            Ok(Some(tombstone)) => self.shared.trust_parts.send_modify(|parts| {
                parts.removed_nodes.insert(node_id, tombstone.encode_to_vec());
            }),
            Ok(None) => {}
            Err(error) => tracing::warn!(%node_id, %error, "cannot ask for the proof that a node was deleted"),
        }
    }
}
