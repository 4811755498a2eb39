//! What a collector knows of one peer: when to ask it again, and for what.

use super::{ANSWER_TICKS, LONGEST_PAUSE_TICKS};
use crate::progress::PeerAnswer;
use crate::request::Reason;

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    state: State,
    /// Requests in a row that brought nothing.
    failures: u32,
    answer: Option<PeerAnswer>,
    silent_since: Option<u64>,
    /// It is to be shown the node's member list with the next request.
    wants_list: bool,
    /// It has answered with a key that is wrong, and may still have a share.
    gives_wrong_keys: bool,
    /// Which collection it is asked for first.
    first: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// To be asked from this tick on.
    Pausing {
        until: u64,
    },
    Asked(Asked),
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    since: u64,
    /// Which key its share is of; none if it had no share with it.
    pub(super) collection: Option<usize>,
    with_list: bool,
}

impl Peer {
    pub(super) fn new(now: u64) -> Self {
        Self {
            state: State::Pausing { until: now },
            failures: 0,
            answer: None,
            silent_since: None,
            wants_list: false,
            gives_wrong_keys: false,
            first: 0,
        }
    }

    /// Counts a request as not answered once it has waited for long.
    pub(super) fn pass_time(&mut self, now: u64) {
        match self.state {
            State::Asked(asked) if asked.since + ANSWER_TICKS <= now => self.is_silent(now),
            State::Asked(_) | State::Pausing { .. } => {}
        }
    }

    pub(super) fn is_up(&mut self, now: u64) {
        self.failures = 0;
        match self.state {
            State::Pausing { .. } => self.state = State::Pausing { until: now },
            State::Asked(_) => {}
        }
    }

    pub(super) fn is_silent(&mut self, now: u64) {
        match self.state {
            State::Asked(asked) => {
                self.silent_since.get_or_insert(asked.since);
                self.pause(now);
            }
            State::Pausing { .. } => {}
        }
    }

    /// An answer has come; nothing when none was waited for.
    pub(super) fn answered(&mut self, now: u64) -> Option<Asked> {
        match self.state {
            State::Asked(asked) => {
                self.silent_since = None;
                self.state = State::Pausing { until: now };
                Some(asked)
            }
            State::Pausing { .. } => None,
        }
    }

    /// Decides by an answer when the peer is asked again, and for what.
    pub(super) fn judge(&mut self, answer: PeerAnswer, asked: Asked, now: u64, collections: usize) {
        self.wants_list = false;
        match &answer {
            // There may be a share of the other key to ask for, and once the peer is open, the key.
            PeerAnswer::Share => {
                self.failures = 0;
                self.pause(now);
            }
            PeerAnswer::Key => self.pause(now),
            // The next request says that the list is known.
            PeerAnswer::NewerMembers => self.soon(asked, now),
            PeerAnswer::OlderMembers => self.show_list(asked, now),
            PeerAnswer::Refused { reason: Reason::UnknownKey, .. } => self.show_list(asked, now),
            PeerAnswer::WrongKey => {
                // Once: then its share is asked for, and after that its key again, which may be another by then.
                self.gives_wrong_keys = !self.gives_wrong_keys;
                self.pause(now);
            }
            PeerAnswer::Refused { .. } | PeerAnswer::BadShare | PeerAnswer::BadList | PeerAnswer::Nonsense => {
                self.gives_wrong_keys = false;
                if let Some(collection) = asked.collection {
                    self.first = (collection + 1) % collections.max(1);
                }
                self.pause(now);
            }
        }
        self.answer = Some(answer);
    }

    /// Shows the list, unless that was just done.
    fn show_list(&mut self, asked: Asked, now: u64) {
        if asked.with_list {
            self.pause(now);
        } else {
            self.wants_list = true;
        }
    }

    /// At once, unless the answers go in a circle.
    fn soon(&mut self, asked: Asked, now: u64) {
        if asked.since == now && self.answer == Some(PeerAnswer::NewerMembers) {
            self.pause(now);
        }
    }

    fn pause(&mut self, now: u64) {
        let pause = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX).min(LONGEST_PAUSE_TICKS);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Pausing { until: now + pause };
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        match self.state {
            State::Pausing { until } => until <= now,
            State::Asked(_) => false,
        }
    }

    pub(super) fn ask(&mut self, now: u64, collection: Option<usize>, with_list: bool) {
        self.state = State::Asked(Asked { since: now, collection, with_list });
    }

    /// The collections in the order in which the peer is asked for them.
    pub(super) fn order(&self, collections: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.first;
        (0..collections).map(move |index| (first + index) % collections)
    }

    pub(super) const fn wants_list(&self) -> bool {
        self.wants_list
    }

    pub(super) const fn gives_wrong_keys(&self) -> bool {
        self.gives_wrong_keys
    }

    pub(super) const fn answer(&self) -> Option<&PeerAnswer> {
        self.answer.as_ref()
    }

    pub(super) const fn silent_since(&self) -> Option<u64> {
        self.silent_since
    }
}
