//! What a cluster of nodes and one of raw etcds have in common.

use std::ops::Range;
use std::time::Instant;

use crate::BenchError;

/// Members of each cluster.
pub(crate) const MEMBERS: usize = 3;

/// All of them.
pub(crate) const ALL: Range<usize> = 0..MEMBERS;

/// Three members, by their numbers from 0.
pub(crate) trait Contestant {
    /// Waits until all members are there and agree on a leader. Returns the leader's number.
    async fn whole(&self) -> Result<usize, BenchError>;

    /// Waits for a write, tried at all members. Returns when it was answered.
    async fn write(&self) -> Result<Instant, BenchError>;

    /// Starts members that do not run, and does not wait.
    async fn launch(&mut self, members: Range<usize>) -> Result<(), BenchError>;

    /// Sends SIGKILL to members, and does not wait.
    fn send_kill(&self, members: Range<usize>);

    /// Asks all members to stop, and does not wait.
    fn send_terminate(&self) -> Result<(), BenchError>;

    /// Waits until members that are ending are gone, with all their processes. Returns when that was.
    async fn ended(&mut self, members: Range<usize>) -> Result<Instant, BenchError>;

    /// Ends all of it.
    async fn kill(mut self) -> Result<(), BenchError>
    where
        Self: Sized,
    {
        self.send_kill(ALL);
        self.ended(ALL).await.map(drop)
    }
}
