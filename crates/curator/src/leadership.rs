//! Who leads the cluster, and may change its state.
//!
//! The leader is the node that `/leader/current` names. A node claims the leadership by writing itself there, in a transaction
//! on the condition that the key is still as it saw it. What a leader changes afterwards is conditioned on the revision of
//! that write ([`LeaderState`]), so the leader before can do nothing from that moment on, whatever it believes. That is all
//! that safety rests on. When to claim is a preference only, decided by `may_claim`:
//!
//! - who leads raft claims if it does so in a higher term than the one of the present claim: the leadership follows raft;
//! - who finds itself named claims again: it was started anew;
//! - if the leader has given no sign of life for [`LeadershipTiming::silence`] (it writes `/leader/alive` every
//!   [`LeadershipTiming::alive_interval`]), every member with a vote claims. Then the member that leads raft is well and its
//!   curator is not, and raft will not help.
//!
//! Time is this node's own monotonic time, and no two clocks are compared.

mod claim;
mod completion;
mod decision;
mod follow;
mod knowledge;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use polis_identity::NodeId;

use crate::LeaderState;

pub use self::claim::{ClaimError, Seen, claim};
pub(crate) use self::follow::{Follow, alive};

/// How often the leader gives a sign of life.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// After how long a silence the leader is taken to hang. Two signs of life may get lost or be late, as they are while etcd
/// elects a new leader; a write is to succeed within 25 s after a leader was stopped.
const SILENCE: Duration = Duration::from_secs(15);

const _: () = assert!(ALIVE_INTERVAL.as_nanos() * 3 <= SILENCE.as_nanos());

/// Who leads the cluster, as this node knows it.
#[derive(Clone, Debug)]
pub enum Leadership {
    /// Nobody is known to lead: there is no claim, or this node has no contact with a quorum, so that what it knows may be
    /// old. A leader that gets contact again leads on, if nobody has claimed meanwhile.
    Unsettled,
    /// Another node leads.
    Follower {
        /// The leader.
        leader: NodeId,
        /// Where it was last seen, when that is known.
        address: Option<IpAddr>,
    },
    /// This node leads.
    Leader(LeaderState),
}

impl Leadership {
    /// The state in the hands of this node, if it leads.
    #[must_use]
    pub const fn leader(&self) -> Option<&LeaderState> {
        match self {
            Self::Leader(state) => Some(state),
            Self::Unsettled | Self::Follower { .. } => None,
        }
    }
}

impl PartialEq for Leadership {
    /// Two leaderships of this node are the same when they come from the same claim.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unsettled, Self::Unsettled) => true,
            (Self::Follower { leader, address }, Self::Follower { leader: other, address: elsewhere }) => {
                leader == other && address == elsewhere
            }
            (Self::Leader(state), Self::Leader(other)) => state.fence() == other.fence(),
            (Self::Unsettled | Self::Follower { .. } | Self::Leader(_), _) => false,
        }
    }
}

/// How often signs of life are given, and how long they are waited for. Shorter ones are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipTiming {
    /// How often the leader gives a sign of life.
    pub alive_interval: Duration,
    /// After how long a silence others claim.
    pub silence: Duration,
}

impl Default for LeadershipTiming {
    fn default() -> Self {
        Self { alive_interval: ALIVE_INTERVAL, silence: SILENCE }
    }
}
