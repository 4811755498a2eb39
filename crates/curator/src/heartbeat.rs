//! When the leader last heard of each node (metropolis.md, G.7).
//!
//! Heartbeats are known to the leader alone and only while it leads; a new leader begins with none. They are measured by the
//! monotonic clock, and the present time comes in from outside.
//!
//! They also tell whether a node runs twice, as it does when its root directory was copied: two members with one vote would be
//! able to break what consensus promises. A process has one stream of heartbeats at a time, so where an earlier stream goes on
//! beside a later one there are two processes. The earlier one stays, and the later is refused for as long.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polis_identity::NodeId;
use polis_proto::api::node::Health;
use polis_proto::common::NodeState;
use tokio::time::Instant;

/// How often a node sends a heartbeat (metropolis.md, G.7).
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// For how long a node may be silent and still be healthy (metropolis.md, G.7).
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

// One heartbeat may be lost or late without a node being called unhealthy.
const _: () = assert!(HEARTBEAT_INTERVAL.as_nanos() * 2 <= HEARTBEAT_TIMEOUT.as_nanos());

/// How many heartbeats of an earlier stream must come after the first of a later one before both are held for alive. One may have been
/// on its way when its process went over to the later one; the next is sent only after the answer to that.
const BEATS_OF_ANOTHER: u32 = 2;

/// How long a process that was refused counts as there after its last attempt. It tries again with pauses that grow to some
/// seconds.
const OTHER_FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// When the leader last heard of each node. Clones share the same.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats(Arc<Mutex<Inner>>);

/// One stream of heartbeats of a node, until it is dropped.
#[derive(Debug)]
pub struct HeartbeatStream {
    heartbeats: Heartbeats,
    node: NodeId,
    address: IpAddr,
    /// Later streams have higher numbers.
    number: u64,
}

/// Another process shows itself as the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{node} runs twice: another process with the same key, at {address}, has shown itself to the leader before this one and still \
     does. Its root directory was copied, or is started on two machines"
)]
pub struct RunsTwice {
    /// The node.
    pub node: NodeId,
    /// Where the other process is, as the leader sees it.
    pub address: IpAddr,
}

/// The streams of a node.
#[derive(Clone, Copy, Debug)]
struct Streams {
    /// The one that is held for the node's.
    number: u64,
    address: IpAddr,
    /// The one before, and how many heartbeats it has sent after the first of that one.
    earlier: Option<(u64, u32)>,
    /// A later one was found beside it, which is refused.
    other: Option<Other>,
    last: Instant,
}

/// The process that is refused.
#[derive(Clone, Copy, Debug)]
struct Other {
    address: IpAddr,
    /// When it has shown itself last.
    last: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    /// Since when this node leads; `None` while it does not.
    leading_since: Option<Instant>,
    heard: BTreeMap<NodeId, Instant>,
    streams: BTreeMap<NodeId, Streams>,
    next_stream: u64,
}

impl HeartbeatStream {
    /// A heartbeat has come.
    ///
    /// # Errors
    ///
    /// When the node runs twice, and this is not the process that stays.
    pub fn beat(&self, now: Instant) -> Result<(), RunsTwice> {
        self.heartbeats.lock().judge(self, now)?;
        self.heartbeats.stamp(self.node, now);
        Ok(())
    }
}

impl Drop for HeartbeatStream {
    fn drop(&mut self) {
        let mut inner = self.heartbeats.lock();
        if inner.streams.get(&self.node).is_some_and(|streams| streams.number == self.number) {
            inner.streams.remove(&self.node);
        }
    }
}

impl Inner {
    /// Forgets all but the number of the next stream: streams of before may be there for a moment.
    fn clear(&mut self) {
        *self = Self { next_stream: self.next_stream, ..Self::default() };
    }

    fn judge(&mut self, stream: &HeartbeatStream, now: Instant) -> Result<(), RunsTwice> {
        let HeartbeatStream { node, address, number, .. } = *stream;
        let first = Streams { number, address, earlier: None, other: None, last: now };
        let streams = self.streams.entry(node).or_insert(first);
        match number.cmp(&streams.number) {
            Ordering::Equal => streams.last = now,
            Ordering::Greater => {
                // Who is silent cannot keep another away.
                if streams.other.is_some() && now.saturating_duration_since(streams.last) < HEARTBEAT_TIMEOUT {
                    streams.other = Some(Other { address, last: now });
                    return Err(RunsTwice { node, address: streams.address });
                }
                *streams = Streams { earlier: Some((streams.number, 0)), ..first };
            }
            Ordering::Less => {
                let known = streams.earlier.filter(|(earlier, _)| *earlier == number);
                let beats = known.map_or(0, |(_, beats)| beats) + 1;
                streams.earlier = Some((number, beats));
                if beats >= BEATS_OF_ANOTHER {
                    tracing::error!(
                        %node,
                        earlier = %address,
                        later = %streams.address,
                        "a node runs twice: its root directory was copied, or is started on two machines; the later process is \
                         refused, and must be stopped"
                    );
                    let other = Other { address: streams.address, last: streams.last };
                    *streams = Streams { other: Some(other), ..first };
                }
            }
        }
        Ok(())
    }
}

impl Heartbeats {
    /// A stream of heartbeats of `node` has come from `address`.
    #[must_use]
    pub fn open(&self, node: NodeId, address: IpAddr) -> HeartbeatStream {
        let mut inner = self.lock();
        inner.next_stream += 1;
        HeartbeatStream { heartbeats: self.clone(), node, address, number: inner.next_stream }
    }

    /// This node leads from `now` on and has heard of nobody yet.
    pub fn begin(&self, now: Instant) {
        let mut inner = self.lock();
        inner.clear();
        inner.leading_since = Some(now);
    }

    /// This node no longer leads.
    pub fn end(&self) {
        self.lock().clear();
    }

    /// A heartbeat of `node` has come. Without effect while this node does not lead.
    pub fn stamp(&self, node: NodeId, now: Instant) {
        let mut inner = self.lock();
        if inner.leading_since.is_some() {
            inner.heard.insert(node, now);
        }
    }

    /// Where another process shows itself as `node` and is refused; `None` when the node runs once, as far as is known.
    #[must_use]
    pub fn other_process(&self, node: &NodeId, now: Instant) -> Option<IpAddr> {
        let other = self.lock().streams.get(node)?.other?;
        (now.saturating_duration_since(other.last) < OTHER_FORGOTTEN_AFTER).then_some(other.address)
    }

    /// Forgets a node that was deleted.
    pub fn forget(&self, node: &NodeId) {
        let mut inner = self.lock();
        inner.heard.remove(node);
        inner.streams.remove(node);
    }

    /// How long ago the last heartbeat of `node` came; `None` when none has since this node leads.
    #[must_use]
    pub fn age(&self, node: &NodeId, now: Instant) -> Option<Duration> {
        self.lock().heard.get(node).map(|heard| now.saturating_duration_since(*heard))
    }

    /// How a node in this state is, as far as its heartbeats tell.
    #[must_use]
    pub fn health(&self, state: NodeState, node: &NodeId, now: Instant) -> Health {
        match state {
            NodeState::Invalid | NodeState::New | NodeState::Standby | NodeState::Decommissioned => {
                return Health::Unknown;
            }
            NodeState::Up => {}
        }
        let inner = self.lock();
        // Who was never heard of is judged like one that was last heard when this node began to lead, except that it cannot
        // be called healthy.
        let since = |from: Option<Instant>| from.map(|from| now.saturating_duration_since(from));
        match (since(inner.heard.get(node).copied()), since(inner.leading_since)) {
            (Some(age), _) if age < HEARTBEAT_TIMEOUT => Health::Healthy,
            (Some(_), _) => Health::HeartbeatTimeout,
            (None, Some(leading)) if leading >= HEARTBEAT_TIMEOUT => Health::HeartbeatTimeout,
            (None, Some(_) | None) => Health::Unknown,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    fn node() -> NodeId {
        NodeId::of(&NodeKey::generate().public())
    }

    #[test]
    fn health_follows_from_state_silence_and_how_long_the_leader_leads() {
        let (heard, silent) = (node(), node());
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.health(NodeState::Up, &heard, at(100.0)), Health::Unknown, "nobody leads here");
        heartbeats.begin(at(100.0));
        heartbeats.stamp(heard, at(102.0));
        let cases = [
            (NodeState::Up, heard, 102.0, Health::Healthy),
            (NodeState::Up, heard, 111.9, Health::Healthy),
            (NodeState::Up, heard, 112.0, Health::HeartbeatTimeout),
            (NodeState::Up, silent, 100.0, Health::Unknown),
            (NodeState::Up, silent, 109.9, Health::Unknown),
            (NodeState::Up, silent, 110.0, Health::HeartbeatTimeout),
            (NodeState::New, heard, 102.0, Health::Unknown),
            (NodeState::Standby, heard, 150.0, Health::Unknown),
            (NodeState::Decommissioned, heard, 102.0, Health::Unknown),
        ];
        for (state, node, when, expected) in cases {
            assert_eq!(heartbeats.health(state, &node, at(when)), expected, "{state:?} at {when}");
        }
    }

    #[test]
    fn a_new_leadership_has_heard_of_nobody() {
        let node = node();
        let now = Instant::now();
        let heartbeats = Heartbeats::default();
        heartbeats.stamp(node, now);
        assert_eq!(heartbeats.age(&node, now), None, "who does not lead keeps nothing");
        heartbeats.begin(now);
        heartbeats.stamp(node, now);
        let later = now + Duration::from_secs(3);
        assert_eq!(heartbeats.age(&node, later), Some(Duration::from_secs(3)));
        heartbeats.begin(later);
        assert_eq!(heartbeats.age(&node, later), None);
        heartbeats.stamp(node, later);
        heartbeats.forget(&node);
        assert_eq!(heartbeats.age(&node, later), None);
        heartbeats.stamp(node, later);
        heartbeats.end();
        assert_eq!(heartbeats.age(&node, later), None);
    }

    /// Streams of one node that send heartbeats in this order, each at the given second: the places in it of those that are refused.
    #[track_caller]
    fn check_streams(beats: &[(usize, u64)], refused: &[usize]) {
        let start = Instant::now();
        let heartbeats = Heartbeats::default();
        heartbeats.begin(start);
        let node = node();
        let streams: Vec<_> = (1..=3).map(|last| heartbeats.open(node, IpAddr::from([10, 0, 0, last]))).collect();
        let found = beats.iter().enumerate().filter_map(|(at, (stream, second))| {
            streams[*stream].beat(start + Duration::from_secs(*second)).is_err().then_some(at)
        });
        assert_eq!(found.collect::<Vec<_>>(), refused, "{beats:?}");
    }

    #[test]
    fn the_later_of_two_processes_with_one_key_is_refused() {
        // One process after another, with one heartbeat that was on its way.
        check_streams(&[(0, 0), (0, 5), (1, 6), (1, 11), (2, 12)], &[]);
        check_streams(&[(0, 0), (1, 1), (0, 1), (1, 6), (1, 11)], &[]);
        check_streams(&[(0, 0), (1, 1), (0, 1), (1, 6), (2, 7), (1, 7), (2, 12)], &[]);
        // Two at a time, and a third.
        check_streams(&[(0, 0), (1, 1), (0, 5), (1, 6), (0, 10), (1, 11), (0, 15), (2, 16)], &[5, 7]);
        // The first has gone silent: the second may stay.
        check_streams(&[(0, 0), (1, 1), (0, 5), (0, 10), (1, 11), (1, 20)], &[4]);
    }

    #[test]
    fn the_later_process_may_stay_once_the_earlier_has_ended() {
        let now = Instant::now();
        let heartbeats = Heartbeats::default();
        heartbeats.begin(now);
        let node = node();
        let (first, second) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let earlier = heartbeats.open(node, first);
        let later = heartbeats.open(node, second);
        for stream in [&earlier, &later, &earlier, &earlier] {
            assert_eq!(stream.beat(now), Ok(()));
        }
        assert_eq!(heartbeats.other_process(&node, now), Some(second), "who leads can tell before it comes again");
        let again = now + Duration::from_secs(1);
        assert_eq!(later.beat(again), Err(RunsTwice { node, address: first }));
        assert_eq!(heartbeats.other_process(&node, again + Duration::from_secs(59)), Some(second));
        assert_eq!(heartbeats.other_process(&node, again + Duration::from_secs(60)), None, "it has gone");
        drop(earlier);
        assert_eq!(later.beat(now), Ok(()));
        assert_eq!(heartbeats.other_process(&node, now), None);
        // Streams of before another leadership count for nothing, and are told apart from those of it.
        heartbeats.begin(now);
        let newest = heartbeats.open(node, second);
        for stream in [&newest, &later, &newest, &newest] {
            assert_eq!(stream.beat(now), Ok(()));
        }
    }
}
