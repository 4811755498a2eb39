//! [`Judge`]: whether a node that leads is to be followed.

use std::fmt::Debug;

use futures::future::BoxFuture;
use polis_identity::NodeId;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

/// Whether a node that says of itself that it leads is to be followed. Its certificate shows that it is of the cluster, and not of
/// which one of two that have come from one, after a node that was only cut off was made a cluster of its own.
pub trait Judge: Debug + Send + Sync {
    /// `Ok` for a leader to follow; otherwise why it is not, and it is asked again after a pause. There has been no leader since
    /// `since`.
    fn judge<'a>(&'a self, leader: NodeId, channel: &'a Channel, since: Instant) -> BoxFuture<'a, Result<(), Status>>;
}
