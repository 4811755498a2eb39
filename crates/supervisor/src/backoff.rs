//! How long a runnable that died waits before it is started again.

use std::time::Duration;

/// The numbers of an exponential backoff. The default is that of metropolis.md A.3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffSettings {
    /// The first interval.
    pub initial: Duration,
    /// What each interval is multiplied by to get the next; 1 or more.
    pub multiplier: f64,
    /// How far the wait may differ from the interval, as a part of it: 0.5 is from half to one and a half of it.
    pub randomization: f64,
    /// The longest interval. The wait itself may be longer by the randomization.
    pub maximum: Duration,
}

impl Default for BackoffSettings {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            multiplier: 1.5,
            randomization: 0.5,
            maximum: Duration::from_secs(60),
        }
    }
}

/// An exponential backoff. Pure: the randomness comes in from outside.
#[derive(Clone, Debug)]
pub struct Backoff {
    settings: BackoffSettings,
    interval: Duration,
}

impl Backoff {
    /// A backoff at its first interval.
    #[must_use]
    pub fn new(settings: BackoffSettings) -> Self {
        Self { settings, interval: settings.initial.min(settings.maximum) }
    }

    /// The interval around which the next wait will lie.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The next wait, and one step on. `random` is from 0 (the shortest wait) up to 1 (the longest).
    pub fn next(&mut self, random: f64) -> Duration {
        let spread = self.settings.randomization * (2.0 * random - 1.0);
        let wait = self.interval.mul_f64((1.0 + spread).max(0.0));
        let longest = self.settings.maximum;
        // Compared before the multiplication, which could overflow.
        let grows_past = self.interval >= longest.div_f64(self.settings.multiplier.max(1.0));
        self.interval = if grows_past { longest } else { self.interval.mul_f64(self.settings.multiplier.max(1.0)) };
        wait
    }

    /// Back to the first interval.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(settings: BackoffSettings, random: f64, count: usize) -> Vec<u128> {
        let mut backoff = Backoff::new(settings);
        (0..count).map(|_| backoff.next(random).as_millis()).collect()
    }

    #[test]
    fn the_default_table() {
        let settings = BackoffSettings::default();
        assert_eq!(waits(settings, 0.5, 6), [500, 750, 1125, 1687, 2531, 3796]);
        assert_eq!(waits(settings, 0.0, 6), [250, 375, 562, 843, 1265, 1898]);
        assert_eq!(waits(settings, 1.0, 6), [750, 1125, 1687, 2531, 3796, 5695]);
    }

    #[test]
    fn the_interval_stops_at_the_maximum() {
        let mut backoff = Backoff::new(BackoffSettings::default());
        let waits: Vec<_> = (0..40).map(|_| backoff.next(0.5)).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[39], Duration::from_secs(60));
        assert_eq!(waits.iter().filter(|wait| **wait < Duration::from_secs(60)).count(), 12);
        assert_eq!(backoff.interval(), Duration::from_secs(60));
    }

    #[test]
    fn a_reset_starts_again_from_the_first_interval() {
        let mut backoff = Backoff::new(BackoffSettings::default());
        backoff.next(0.5);
        backoff.next(0.5);
        backoff.reset();
        assert_eq!(backoff.next(0.5), Duration::from_millis(500));
    }

    #[test]
    fn odd_settings_are_not_a_panic() {
        let zero = BackoffSettings { initial: Duration::ZERO, ..BackoffSettings::default() };
        assert_eq!(waits(zero, 0.5, 3), [0, 0, 0]);
        let wild = BackoffSettings {
            initial: Duration::from_secs(1),
            multiplier: 0.0,
            randomization: 3.0,
            maximum: Duration::from_millis(200),
        };
        assert_eq!(waits(wild, 0.0, 2), [0, 0]);
        assert_eq!(waits(wild, 0.5, 2), [200, 200]);
    }
}
