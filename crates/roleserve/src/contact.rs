//! [`Contact`]: whether this node has the ear of its cluster's leader.

use std::time::Duration;

use polis_identity::NodeId;
use tokio::time::Instant;

/// How a node stands to the leader of its cluster. A watched value: it wakes when contact is gained or lost, when the leader
/// changes and when a failure has another reason, and not at each heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// Whether the last heartbeat was answered in time and the stream has not ended since.
    pub established: bool,
    /// When a heartbeat was answered last, since this process began.
    pub last_heartbeat: Option<Instant>,
    /// The leader that answered it.
    pub leader: Option<NodeId>,
    /// What went wrong last, while there is no contact.
    pub last_failure: Option<String>,
}

impl Contact {
    /// How long ago a heartbeat was answered last.
    #[must_use]
    pub fn silent_for(&self, now: Instant) -> Option<Duration> {
        self.last_heartbeat.map(|last| now.saturating_duration_since(last))
    }

    /// A heartbeat was answered. Returns whether somebody wants to know that.
    pub(crate) fn succeed(&mut self, leader: Option<NodeId>, now: Instant) -> bool {
        let news = !self.established || self.leader != leader;
        *self = Self { established: true, last_heartbeat: Some(now), leader, last_failure: None };
        news
    }

    /// There is no contact, for this reason. Returns whether that is news.
    pub(crate) fn fail(&mut self, reason: String) -> bool {
        let news = self.established || self.last_failure.as_ref() != Some(&reason);
        (self.established, self.last_failure) = (false, Some(reason));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_news() {
        let leader = Some(NodeId::of(&polis_identity::NodeKey::generate().public()));
        let start = Instant::now();
        let mut contact = Contact::default();
        assert!(contact.fail("refused".to_owned()));
        assert!(!contact.fail("refused".to_owned()));
        assert!(contact.fail("timed out".to_owned()));
        assert!(contact.succeed(leader, start));
        assert!(!contact.succeed(leader, start + Duration::from_secs(5)));
        assert_eq!(contact.silent_for(start + Duration::from_secs(7)), Some(Duration::from_secs(2)));
        assert!(contact.succeed(None, start));
        assert!(contact.fail("ended".to_owned()));
        assert_eq!((contact.established, contact.last_heartbeat), (false, Some(start)));
    }
}
