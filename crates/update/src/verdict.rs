//! [`verdict()`]: whether the image that runs has proven itself.
//!
//! An image is good when its node has joined the cluster with it. If it were that alone, a node that is updated while the cluster
//! cannot be reached would go back at its next restart, although nothing is wrong with the image, and with an older one it would not
//! reach the cluster either (metropolis.md J.3). So a node that has all that it needs from its own machine proves its image too; that
//! takes longer, as an image whose network does not work looks the same for a while.

use std::time::Duration;

/// How long a node must be in the cluster before its image is good: what fails right after joining is still caught.
pub const JOINED_FOR: Duration = Duration::from_secs(15);
/// How long a node must be sound by itself while it cannot reach the cluster.
pub const SOUND_FOR: Duration = Duration::from_secs(10 * 60);

/// What is known of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// It has given up for good.
    pub failed: bool,
    /// It is in its cluster: Running, and it hears of the leader.
    pub joined: bool,
    /// It could read its journal and open the seal of it.
    pub keys_open: bool,
    /// It has an address.
    pub has_address: bool,
    /// It has a condition that is about its own machine and keeps it from working.
    pub own_fault: bool,
}

impl Facts {
    /// Whether nothing of the machine itself keeps it from joining.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.failed && self.keys_open && self.has_address && !self.own_fault
    }
}

/// What is to be done about the image that runs and is on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has proven itself by joining.
    Joined,
    /// It has proven itself, as far as it can without the cluster.
    SoundAlone,
    /// Look again after this time at the latest, or when the facts have changed.
    LookAgain(Duration),
    /// Nothing can be said before the facts change.
    NotYet,
}

/// The verdict, when the node has been joined for `joined_for` and sound for `sound_for`; nothing where it is not.
#[must_use]
pub fn verdict(facts: &Facts, joined_for: Option<Duration>, sound_for: Option<Duration>) -> Verdict {
    if facts.failed {
        return Verdict::NotYet;
    }
    let joined_left = joined_for.filter(|_| facts.joined).map(|lasted| JOINED_FOR.saturating_sub(lasted));
    let sound_left = sound_for.filter(|_| facts.is_sound()).map(|lasted| SOUND_FOR.saturating_sub(lasted));
    match (joined_left, sound_left) {
        (Some(Duration::ZERO), _) => Verdict::Joined,
        (_, Some(Duration::ZERO)) => Verdict::SoundAlone,
        (Some(joined), Some(sound)) => Verdict::LookAgain(joined.min(sound)),
        (Some(left), None) | (None, Some(left)) => Verdict::LookAgain(left),
        (None, None) => Verdict::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Facts = Facts { failed: false, joined: false, keys_open: true, has_address: true, own_fault: false };

    #[test]
    fn good_is_joined_or_sound_without_the_cluster() {
        let second = Duration::from_secs(1);
        let joined = Facts { joined: true, ..SOUND };
        for (facts, joined_for, sound_for, expected) in [
            (joined, Some(JOINED_FOR), Some(JOINED_FOR), Verdict::Joined),
            (joined, Some(JOINED_FOR - second), Some(SOUND_FOR - second), Verdict::LookAgain(second)),
            (joined, Some(Duration::ZERO), Some(SOUND_FOR - second), Verdict::LookAgain(second)),
            (joined, Some(Duration::ZERO), Some(Duration::ZERO), Verdict::LookAgain(JOINED_FOR)),
            // It was joined, and is not any more.
            (SOUND, Some(JOINED_FOR), Some(Duration::ZERO), Verdict::LookAgain(SOUND_FOR)),
            (SOUND, None, Some(SOUND_FOR), Verdict::SoundAlone),
            (SOUND, None, Some(SOUND_FOR - second), Verdict::LookAgain(second)),
            (SOUND, None, None, Verdict::NotYet),
            (Facts { has_address: false, ..SOUND }, None, Some(SOUND_FOR), Verdict::NotYet),
            (Facts { keys_open: false, ..SOUND }, None, Some(SOUND_FOR), Verdict::NotYet),
            (Facts { own_fault: true, ..SOUND }, None, Some(SOUND_FOR), Verdict::NotYet),
            // A condition does not count once it has joined all the same.
            (Facts { own_fault: true, ..joined }, Some(JOINED_FOR), None, Verdict::Joined),
            (Facts { failed: true, ..joined }, Some(JOINED_FOR), Some(SOUND_FOR), Verdict::NotYet),
        ] {
            assert_eq!(verdict(&facts, joined_for, sound_for), expected, "{facts:?} {joined_for:?} {sound_for:?}");
        }
    }
}
