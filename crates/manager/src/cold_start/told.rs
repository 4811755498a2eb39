//! When it is worth saying again how far an unlock is: time alone passes every second.

use std::time::Duration;

use polis_unlock::{PeerAnswer, PeerProgress, Progress, Reason};
use polis_unlock_service::UnlockStatus;

/// After how long the same is said again, with the time that has passed: each time is one line in the log.
pub(super) const REPEAT_AFTER: Duration = Duration::from_secs(30);

/// For how long nothing is said after something was: the first answers of all come within less, and are one line.
pub(super) const REST_AFTER: Duration = Duration::from_millis(500);

/// Whether this says something else than what was said before, apart from how long it has been so, and from why others refuse: what
/// they say changes with each question that they are asked.
pub(super) fn is_news(told: &UnlockStatus, now: &UnlockStatus) -> bool {
    told.alarms != now.alarms || without_time(&told.progress) != without_time(&now.progress)
}

/// Who is silent or refuses, and not since when or why.
fn without_time(progress: &Progress) -> Progress {
    let answer = |answer: &PeerAnswer| match answer {
        PeerAnswer::Refused { .. } => {
            PeerAnswer::Refused { reason: Reason::NothingToGive, detail: String::new(), counts: None }
        }
        PeerAnswer::Share
        | PeerAnswer::BadShare
        | PeerAnswer::Key
        | PeerAnswer::WrongKey
        | PeerAnswer::NewerMembers
        | PeerAnswer::OlderMembers
        | PeerAnswer::BadList
        | PeerAnswer::Nonsense => answer.clone(),
    };
    let peer = |peer: &PeerProgress| PeerProgress {
        silent_since: peer.silent_since.map(|_| 0),
        answer: peer.answer.as_ref().map(answer),
        ..peer.clone()
    };
    Progress { peers: progress.peers.iter().map(peer).collect(), ..progress.clone() }
}

#[cfg(test)]
mod tests {
    use polis_identity::{NodeId, NodeKey};
    use polis_unlock::{Alarm, Counts};

    use super::*;

    #[test]
    fn time_alone_is_no_news() {
        let node = NodeId::of(&NodeKey::generate().public());
        let status = |have, answer: Option<PeerAnswer>, silent_since, seconds| {
            let peer = PeerProgress { node, addresses: Vec::new(), answer, silent_since };
            let counts = Some(Counts { have, need: 2 });
            let progress = Progress { counts, peers: vec![peer], not_named: None, dead_keys: 0 };
            UnlockStatus { progress, seconds, ..UnlockStatus::default() }
        };
        let told = status(1, None, Some(3), 10);
        let alarmed = UnlockStatus { alarms: vec![Alarm::BadShare { peer: node }], ..told.clone() };
        let refused = |reason| Some(PeerAnswer::Refused { reason, detail: reason.to_string(), counts: None });
        let refuses = status(1, refused(Reason::UnknownKey), None, 10);
        assert!(is_news(&told, &refuses) && !is_news(&refuses, &status(1, refused(Reason::BadList), None, 11)));
        for (now, expected) in [
            (status(1, None, Some(3), 11), false),
            (status(1, None, Some(5), 11), false),
            (status(1, None, None, 11), true),
            (status(2, None, Some(3), 11), true),
            (status(1, Some(PeerAnswer::Share), Some(3), 11), true),
            (alarmed, true),
        ] {
            assert_eq!(is_news(&told, &now), expected, "{now:?}");
        }
    }
}
