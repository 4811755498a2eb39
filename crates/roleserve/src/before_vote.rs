//! [`BeforeVote`]: what a node has to see to before its consensus member may get a vote.

use async_trait::async_trait;
use polis_supervisor::BoxError;

/// Sees to it that this node could bring its member back, whenever the power goes after the member got its vote. The leader may give
/// that at any time once the member has started, so this comes before the first start. It may ask the leader: as long as the member
/// has no vote, nobody needs it.
#[async_trait]
pub trait BeforeVote: Send + Sync {
    /// Returns when that is durable. May be dropped and called again.
    ///
    /// # Errors
    ///
    /// When it is not durable; the member is then not started, and this is called again after a pause.
    async fn prepare(&self) -> Result<(), BoxError>;
}
