//! How long to wait before something is tried again.

use std::time::Duration;

/// Pause before the first retry: long enough not to burn a processor, short enough that a passing fault costs nothing.
const FIRST_RETRY: Duration = Duration::from_millis(200);

/// Longest pause before what may pass at any moment is tried again, so that a cure shows within seconds.
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Pause after the first refusal. What a cluster refuses it goes on refusing until somebody acts.
const FIRST_REFUSAL: Duration = Duration::from_secs(2);

/// Longest pause after a refusal: somebody who has cured it waits no longer, and a thousand nodes that were refused ask some
/// thirty times a second in all.
const LAST_REFUSAL: Duration = Duration::from_secs(30);

/// Shortest pause while an operator has not decided yet, so that the one who sits there sees the node come up within a second.
const FIRST_POLL: Duration = Duration::from_millis(500);

/// Longest pause while an operator has not decided yet.
const LAST_POLL: Duration = Duration::from_secs(10);

/// What was waited for already, divided by this, is the pause before the next look: a decision shows within a part of the time
/// that it took. Half a second up to five minutes, ten seconds after a hundred.
const POLLS: u32 = 600;

/// By how much a pause is made longer or shorter, as a part of it, so that nodes that started together do not ask together.
const JITTER: f64 = 0.2;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Nothing: the attempt itself has waited.
    AtOnce,
    /// That something passes by itself.
    Soon,
    /// That somebody changes a refusal into something else.
    Refused,
    /// That an operator decides.
    Decision,
}

/// The pauses between attempts of one thing.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// What the last pause was for, how many there were of its kind, and how long they were.
    last: Option<(Pace, u32, Duration)>,
}

impl Pauses {
    /// The pause before the next attempt. `chance` is between 0 and 1.
    pub(crate) fn next(&mut self, pace: Pace, chance: f64) -> Duration {
        let (count, waited) = match self.last {
            Some((last, count, waited)) if last == pace => (count, waited),
            Some(_) | None => (0, Duration::ZERO),
        };
        let doubled = |first: Duration, last: Duration| first.saturating_mul(2_u32.saturating_pow(count)).min(last);
        let pause = match pace {
            Pace::AtOnce => Duration::ZERO,
            Pace::Soon => doubled(FIRST_RETRY, LAST_RETRY),
            Pace::Refused => doubled(FIRST_REFUSAL, LAST_REFUSAL),
            Pace::Decision => (waited / POLLS).clamp(FIRST_POLL, LAST_POLL),
        };
        let pause = pause.mul_f64(1.0 + JITTER * (2.0 * chance - 1.0));
        self.last = Some((pace, count.saturating_add(1), waited.saturating_add(pause)));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses without jitter.
    fn pauses(pace: Pace) -> impl Iterator<Item = Duration> {
        let mut pauses = Pauses::default();
        std::iter::repeat_with(move || pauses.next(pace, 0.5))
    }

    fn milliseconds(pace: Pace, count: usize) -> Vec<u128> {
        pauses(pace).take(count).map(|pause| pause.as_millis()).collect()
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        assert_eq!(milliseconds(Pace::Soon, 7), [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(milliseconds(Pace::Refused, 6), [2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(pauses(Pace::Soon).nth(1000), Some(LAST_RETRY));
        assert_eq!(milliseconds(Pace::AtOnce, 3), [0, 0, 0]);
    }

    #[test]
    fn a_decision_shows_within_a_part_of_the_time_that_it_took() {
        let mut waited = Duration::ZERO;
        for pause in pauses(Pace::Decision) {
            assert!(pause <= (waited / POLLS).max(FIRST_POLL) && pause <= LAST_POLL, "{pause:?} after {waited:?}");
            waited += pause;
            if waited > Duration::from_secs(3 * 24 * 3600) {
                assert_eq!(pause, LAST_POLL);
                return;
            }
        }
    }

    #[test]
    fn another_thing_to_wait_for_begins_anew() {
        let mut pauses = Pauses::default();
        for _ in 0..5 {
            pauses.next(Pace::Soon, 0.5);
        }
        assert_eq!(pauses.next(Pace::Decision, 0.5), FIRST_POLL);
        assert_eq!(pauses.next(Pace::Soon, 0.5), FIRST_RETRY);
    }

    #[test]
    fn chance_moves_a_pause_by_a_fifth_at_most() {
        for (chance, expect) in [(0.0, 160), (0.5, 200), (1.0, 240)] {
            assert_eq!(Pauses::default().next(Pace::Soon, chance).as_millis(), expect);
        }
    }
}
