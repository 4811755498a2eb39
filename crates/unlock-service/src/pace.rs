//! How fast time passes for a collector.

use std::time::Duration;

use polis_supervisor::{Backoff, BackoffSettings};

/// Ticks are short at first, as others are starting too, and a cold start is over when enough of them are there. Then they are what
/// the collector takes them for, a quarter of a second, at which it can go on for ever.
const TICKS: BackoffSettings = BackoffSettings {
    initial: Duration::from_millis(50),
    multiplier: 1.15,
    randomization: 0.25,
    maximum: Duration::from_millis(250),
};

/// How fast time passes for a collector. No two nodes ask in step.
pub(crate) struct Ticks(Backoff);

impl Ticks {
    pub(crate) fn new() -> Self {
        Self(Backoff::new(TICKS))
    }

    /// How long the next tick takes. `random` is from 0 to 1.
    pub(crate) fn next(&mut self, random: f64) -> Duration {
        self.0.next(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_becomes_a_quarter_of_a_second_and_the_first_second_has_ten() {
        let mut ticks = Ticks::new();
        let first: Vec<Duration> = (0..10).map(|_| ticks.next(0.5)).collect();
        assert!(first.iter().sum::<Duration>() < Duration::from_millis(1_100), "{first:?}");
        for _ in 0..20 {
            ticks.next(0.5);
        }
        assert_eq!(ticks.next(0.5), Duration::from_millis(250));
        assert!(ticks.next(0.0) < ticks.next(1.0));
    }
}
