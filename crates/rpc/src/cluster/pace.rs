//! How often an address is asked again.

use std::time::Duration;

use polis_supervisor::{Backoff, BackoffSettings};

/// Of an address where nobody answers: pauses grow by a quarter of the time that it has been silent, and stay below 5 s with what chance
/// adds. The first is as short as a node needs at least to come back.
const SILENT: BackoffSettings = BackoffSettings {
    initial: Duration::from_millis(20),
    multiplier: 1.3,
    randomization: 0.25,
    maximum: Duration::from_secs(4),
};

/// Of an address where somebody answers and knows no leader: the leader is to be found within 100 ms of being known.
const ANSWERING: Duration = Duration::from_millis(70);

/// The same once it has gone on for so long that nobody waits for a tenth of a second: most likely there is no quorum, and the
/// questions of a thousand nodes would be all that the rest does.
const ANSWERING_FOR_LONG: Duration = Duration::from_millis(700);

/// When it has gone on for long.
const LONG: Duration = Duration::from_secs(30);

/// Share of a pause after an answer that is left to chance, so that those who ask do not do it in step.
const RANDOMIZATION: f64 = 0.3;

/// Pauses of one address in one search.
pub(super) struct Pace {
    silent: Backoff,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { silent: Backoff::new(SILENT) }
    }

    /// Pause after nobody answered. `random` is from 0 to 1.
    pub(super) fn after_silence(&mut self, random: f64) -> Duration {
        self.silent.next(random)
    }

    /// Pause after an answer that named no leader, given for how long there has been none. `random` is from 0 to 1.
    pub(super) fn after_answer(&mut self, searched: Duration, random: f64) -> Duration {
        self.silent.reset();
        let longest = if searched < LONG { ANSWERING } else { ANSWERING_FOR_LONG };
        longest.mul_f64(1.0 - RANDOMIZATION * random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_asked_often_at_first_and_at_least_every_five_seconds() {
        let mut pace = Pace::new();
        let mut silent = Duration::ZERO;
        for _ in 0..100 {
            let pause = pace.after_silence(1.0);
            assert!(pause <= Duration::from_millis(60).max(silent.mul_f64(0.5)), "{pause:?} after {silent:?}");
            assert!(pause <= Duration::from_secs(5));
            silent += pause;
        }
        assert_eq!(pace.after_silence(1.0), Duration::from_secs(5));
    }

    #[test]
    fn an_answer_without_a_leader_is_asked_again_within_a_tenth_of_a_second_at_first() {
        let mut pace = Pace::new();
        assert!(pace.after_answer(Duration::ZERO, 1.0) < Duration::from_millis(100));
        assert!(pace.after_answer(Duration::from_secs(29), 1.0) < Duration::from_millis(100));
        assert!(pace.after_answer(Duration::from_secs(3_600), 1.0) < Duration::from_secs(1));
    }
}
