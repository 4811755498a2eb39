//! Follows a stream of the leader, over changes of the leader and over failures.

use async_trait::async_trait;
use polis_identity::NodeId;
use polis_rpc::{ClusterClient, Leader, describe};
use polis_supervisor::{BoxError, Context};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::identity::Identity;
use crate::pause::Pause;
use crate::shared::Shared;

/// Whoever follows a stream.
#[async_trait]
pub(crate) trait Follower: Send {
    /// What comes on the stream.
    type Message: Send + 'static;
    /// What is followed, for the log.
    const WHAT: &'static str;

    /// Opens the stream at the leader.
    async fn open(&self, channel: Channel) -> Result<Streaming<Self::Message>, Status>;

    /// Takes a message. An error, such as one of the disk, ends the worker, which is then started anew.
    async fn take(&mut self, message: Self::Message) -> Result<(), BoxError>;

    /// The stream is followed no longer, whatever the reason; the next one begins from the start.
    fn lose(&mut self);
}

/// Tells the follower when its stream is followed no longer. A worker that fails or is ended has lost its stream as well, and
/// what it knew would pass for fresh until it follows again.
struct Following<'a, F: Follower>(&'a mut F);

impl<F: Follower> Drop for Following<'_, F> {
    fn drop(&mut self) {
        self.0.lose();
    }
}

/// Follows until something other than the stream fails, and returns what that was.
pub(crate) async fn follow<F: Follower>(
    shared: &Shared,
    context: &Context,
    identity: &Identity,
    cluster: &ClusterClient,
    follower: &mut F,
) -> BoxError {
    let mut pause = Pause::default();
    loop {
        let leader = cluster.leader().await;
        let status = match one_stream(cluster, &leader, Following(follower), &mut pause).await {
            Ok(status) => status,
            Err(error) => return error,
        };
        cluster.doubt(&leader, &status);
        let (what, reason) = (F::WHAT, describe(&status));
        tracing::debug!(leader = %leader.node_id, reason, "the stream of {what} has ended; it is opened again");
        shared.look_at_refusal(context.conditions(), identity, &status).await;
        pause.wait().await;
    }
}

/// Follows one stream and returns how it ended.
async fn one_stream<F: Follower>(
    cluster: &ClusterClient,
    leader: &Leader,
    following: Following<'_, F>,
    pause: &mut Pause,
) -> Result<Status, BoxError> {
    let mut replaced = std::pin::pin!(replaced(cluster, leader.node_id));
    let opened = tokio::select! {
        opened = following.0.open(leader.channel.clone()) => opened,
        status = &mut replaced => return Ok(status),
    };
    let mut stream = match opened {
        Ok(stream) => stream,
        Err(status) => return Ok(status),
    };
    loop {
        let received = tokio::select! {
            received = stream.message() => received,
            status = &mut replaced => return Ok(status),
        };
        match received {
            Ok(Some(message)) => {
                pause.reset();
                following.0.take(message).await?;
            }
            Ok(None) => return Ok(Status::unavailable("the leader has ended the stream")),
            Err(status) => return Ok(status),
        }
    }
}

/// Waits until another node is known to lead.
pub(crate) async fn replaced(cluster: &ClusterClient, leader: NodeId) -> Status {
    let mut search = cluster.search();
    let is_other = search.wait_for(|search| search.leader().is_some_and(|found| found.node_id != leader)).await.is_ok();
    if !is_other {
        // The client is in our hands, and with it the sender.
        std::future::pending::<()>().await;
    }
    Status::unavailable("another node leads now")
}
