//! What was said lately about peers that cannot be reached. etcd tries each of them some twenty times a second for as long as it is away,
//! which may be days; a line now and then tells as much as one for each of these would, and leaves room for others.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time after which the same is said once more of a peer that is still away.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// When what was said of which peer. What is older than [`REPEAT_AFTER`] is forgotten, so that it does not grow.
#[derive(Default)]
pub(super) struct Complaints(Mutex<BTreeMap<(Ipv6Addr, String), Instant>>);

impl Complaints {
    /// Whether this is to be said now; from now on it has been.
    pub(super) fn is_news(&self, peer: Ipv6Addr, complaint: &str, now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| now.saturating_duration_since(*at) < REPEAT_AFTER);
        let key = (peer, complaint.to_owned());
        let is_news = !said.contains_key(&key);
        if is_news {
            said.insert(key, now);
        }
        is_news
    }

    /// The peer was reached: should it go again, that is news.
    pub(super) fn forget(&self, peer: Ipv6Addr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _), _| *known != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_of_a_peer_once_a_minute() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let (one, other) = (Ipv6Addr::from(1), Ipv6Addr::from(2));
        let is_news =
            |peer, complaint: &str, seconds| complaints.is_news(peer, complaint, start + Duration::from_secs(seconds));
        for (peer, complaint, seconds, expected) in [
            (one, "refused", 0, true),
            (one, "refused", 1, false),
            (other, "refused", 1, true),
            (one, "silent", 2, true),
            (one, "refused", 3, false),
            (one, "refused", 59, false),
            (one, "refused", 60, true),
            (one, "refused", 61, false),
            (one, "silent", 61, false),
        ] {
            assert_eq!(is_news(peer, complaint, seconds), expected, "{complaint} of {peer} at {seconds} s");
        }
        complaints.forget(one);
        assert!(is_news(one, "refused", 62));
        assert!(is_news(other, "refused", 62), "it was said more than a minute ago");
        assert!(!is_news(other, "refused", 63));
    }
}
