//! When the leader last heard of each node (metropolis.md, G.7).
//!
//! Heartbeats are known to the leader alone and only while it leads; a new leader begins with none. They are measured by the
//! monotonic clock, and the present time comes in from outside.

use std::collections::BTreeMap;
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

/// When the leader last heard of each node. Clones share the same.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Since when this node leads; `None` while it does not.
    leading_since: Option<Instant>,
    heard: BTreeMap<NodeId, Instant>,
}

impl Heartbeats {
    /// This node leads from `now` on and has heard of nobody yet.
    pub fn begin(&self, now: Instant) {
        *self.lock() = Inner { leading_since: Some(now), heard: BTreeMap::new() };
    }

    /// This node no longer leads.
    pub fn end(&self) {
        *self.lock() = Inner::default();
    }

    /// A heartbeat of `node` has come. Without effect while this node does not lead.
    pub fn stamp(&self, node: NodeId, now: Instant) {
        let mut inner = self.lock();
        if inner.leading_since.is_some() {
            inner.heard.insert(node, now);
        }
    }

    /// Forgets a node that was deleted.
    pub fn forget(&self, node: &NodeId) {
        self.lock().heard.remove(node);
    }

    /// How long ago the last heartbeat of `node` came; `None` when none has since this node leads.
    #[must_use]
    pub fn age(&self, node: &NodeId, now: Instant) -> Option<Duration> {
        self.lock().heard.get(node).map(|heard| now.saturating_duration_since(*heard))
    }

    /// The ages of all heartbeats, ordered by node.
    #[must_use]
    pub fn ages(&self, now: Instant) -> Vec<(NodeId, Duration)> {
        self.lock().heard.iter().map(|(node, heard)| (*node, now.saturating_duration_since(*heard))).collect()
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
        assert_eq!(heartbeats.ages(later), [(node, Duration::from_secs(3))]);
        heartbeats.begin(later);
        assert_eq!(heartbeats.age(&node, later), None);
        heartbeats.stamp(node, later);
        heartbeats.forget(&node);
        assert_eq!(heartbeats.age(&node, later), None);
        heartbeats.stamp(node, later);
        heartbeats.end();
        assert_eq!(heartbeats.ages(later), []);
    }
}
