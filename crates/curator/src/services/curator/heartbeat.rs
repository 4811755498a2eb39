//! Heartbeat: a node shows that it is alive.

use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_identity::NodeId;
use polis_proto::curator_api::{HeartbeatRequest, HeartbeatResponse};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::heartbeat::HeartbeatStream;
use crate::services::core::{Core, with_tombstone};
use crate::services::leader::Tenure;

/// One node that shows that it is alive.
struct Pulse {
    core: Arc<Core>,
    tenure: Tenure,
    node: NodeId,
    stream: HeartbeatStream,
    incoming: Streaming<HeartbeatRequest>,
}

/// Answers each message of the node, for as long as it is a node of the cluster and this node leads. ALREADY_EXISTS when another
/// process, which came before, shows itself as the same node.
pub(super) fn heartbeat(
    core: Arc<Core>,
    node: NodeId,
    address: IpAddr,
    incoming: Streaming<HeartbeatRequest>,
) -> Result<BoxStream<'static, Result<HeartbeatResponse, Status>>, Status> {
    let tenure = core.tenure()?;
    let stream = core.heartbeats.open(node, address);
    let pulse = Pulse { core, tenure, node, stream, incoming };
    let answers = stream::unfold(Some(pulse), async |pulse| {
        let mut pulse = pulse?;
        match pulse.next().await {
            Ok(Some(())) => Some((Ok(HeartbeatResponse {}), Some(pulse))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    Ok(answers.boxed())
}

impl Pulse {
    /// Waits for the next message. `None` when the node has ended the call.
    async fn next(&mut self) -> Result<Option<()>, Status> {
        let message = tokio::select! {
            status = self.tenure.ended() => return Err(status),
            message = self.incoming.message() => message?,
        };
        if message.is_none() {
            return Ok(None);
        }
        self.check().await?;
        let beat = self.stream.beat(Instant::now());
        beat.map_err(|twice| Status::already_exists(twice.to_string()))?;
        Ok(Some(()))
    }

    /// Whether the node is still one.
    async fn check(&self) -> Result<(), Status> {
        let view = self.core.nodes.view(&self.node);
        if let Some(tombstone) = view.tombstone {
            let status = Status::unauthenticated(format!("the node {} was removed from the cluster", self.node));
            return Err(with_tombstone(status, Some(tombstone.to_vec())));
        }
        // A node that has just been committed may not be known here yet, so the state is asked.
        if view.record.is_none() && self.tenure.leader.node(&self.node).await?.is_none() {
            return Err(Core::unknown_node(&self.tenure.leader, &self.node).await?);
        }
        Ok(())
    }
}
