//! What the unlock port allows its callers (cold-start.md, Protocol), each number with its reason.

use std::time::Duration;

use polis_rpc::{Limits, Rate};

/// Longest message, in bytes: the signed list of nine members and one that joins, with a share, is less than three quarters of it.
pub(crate) const LONGEST_MESSAGE: usize = 4 * 1024;

/// The limits of the unlock port. Nine members and some operators are all who have anything to do here, so that everything is
/// small, and a flood costs little.
pub(crate) const LIMITS: Limits = Limits {
    handshake_timeout: Duration::from_secs(5),
    handshakes: 32,
    // Two at the same time for each of eight others.
    handshakes_kept: 16,
    handshakes_per_address: 4,
    strangers: 32,
    strangers_per_address: 4,
    // Four for each of nine others, while one joins.
    members: 36,
    // One in use, one that is lost and not yet noticed, and the same again for a member that has just restarted.
    members_per_key: 4,
    // A stranger makes its calls at once.
    idle_timeout: Duration::from_secs(10),
    streams_of_stranger: 2,
    streams_of_member: 8,
    message_of_stranger: LONGEST_MESSAGE,
    message_of_member: LONGEST_MESSAGE,
    request_timeout_of_stranger: Duration::from_secs(5),
    // An operator who looks at a node twice a second, from a machine from which a script does the same.
    calls_per_second: 10.0,
    calls_at_once: 20.0,
}
.checked();

/// What one member may ask in a minute. It asks four times a second at most, and a few times more when it has heard of a newer list
/// or has found this node again. One that asks more often is not well, and is told to ask again later.
pub(crate) const REQUESTS_PER_MINUTE: u32 = 1_200;

/// The same, as a bucket that holds those of some seconds.
pub(crate) const MEMBER_RATE: Rate = Rate { per_second: REQUESTS_PER_MINUTE as f64 / 60.0, at_once: 200.0 };

/// How long the running cluster is waited for when it is asked whether a member is UP, and for its key. Without an answer it is as if
/// there were none, and the member gets a share: a node that has just lost its quorum must not keep one that could start without it.
pub(crate) const CLUSTER_WORD_DEADLINE: Duration = Duration::from_millis(300);
