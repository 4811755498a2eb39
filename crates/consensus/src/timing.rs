//! Raft timing: how fast members notice a dead leader, and how long a member alone waits for itself.

use std::time::Duration;

/// The two timings that Polis uses. Timing is a start flag of etcd: to change it, etcd is restarted.
///
/// The order of a change keeps leadership calm: from one member to two, the founder is restarted with
/// [`Timing::Network`] before the promotion; from two to one, after the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// For the only member of its cluster. It is elected by nobody but itself, so that the election timeout is nothing
    /// but waiting: it makes up most of the time from exec to the first write.
    Alone,
    /// For members that speak over a network.
    Network,
}

/// Heartbeat of a member alone. Every one of them wakes etcd, so that shorter ones are paid for while idle: with 10 ms etcd
/// takes 0.8 % of a processor, with 5 ms 1.4 %, with 2 ms 2.6 %.
const ALONE_HEARTBEAT: Duration = Duration::from_millis(10);
/// Election timeout of a member alone: five heartbeats, the fewest that etcd takes. It waits for one to five heartbeats before
/// it elects itself; with ten it would be up to ten, and no more awake meanwhile.
const ALONE_ELECTION: Duration = Duration::from_millis(50);
/// Heartbeat over a network: etcd's default, good for round trips of up to about 100 ms.
const NETWORK_HEARTBEAT: Duration = Duration::from_millis(100);
/// Election timeout over a network: etcd's default, ten heartbeats.
const NETWORK_ELECTION: Duration = Duration::from_secs(1);

impl Timing {
    /// How often a leader speaks.
    #[must_use]
    pub const fn heartbeat(self) -> Duration {
        match self {
            Self::Alone => ALONE_HEARTBEAT,
            Self::Network => NETWORK_HEARTBEAT,
        }
    }

    /// How long a leader may be silent before its followers elect another.
    #[must_use]
    pub const fn election(self) -> Duration {
        match self {
            Self::Alone => ALONE_ELECTION,
            Self::Network => NETWORK_ELECTION,
        }
    }
}
