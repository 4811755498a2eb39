//! When a message is sent again (metropolis.md D.3).

use std::time::Duration;

use rand::{Rng, RngExt as _};

/// First pause: enough for a server on the link, and short for somebody who waits.
const INITIAL: Duration = Duration::from_millis(1400);
/// Longest pause while there is no lease.
pub(crate) const MAXIMUM: Duration = Duration::from_secs(30);
/// Longest pause while there is one, in minutes rather than seconds since nothing is lost yet.
pub(crate) const MAXIMUM_WITH_LEASE: Duration = Duration::from_secs(300);
/// How much a pause may be shorter or longer, so that machines that were started together do not ask together for ever.
const RANDOMIZATION: f64 = 0.2;

/// Pauses that double.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backoff {
    next: Duration,
    maximum: Duration,
}

impl Backoff {
    pub(crate) const fn new(maximum: Duration) -> Self {
        Self { next: INITIAL, maximum }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self, random: &mut impl Rng) -> Duration {
        let pause = self.next.mul_f64(random.random_range(1.0 - RANDOMIZATION..=1.0 + RANDOMIZATION));
        self.next = (self.next * 2).min(self.maximum);
        pause.min(self.maximum)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn pauses_double_within_their_randomization_and_limit() {
        for maximum in [MAXIMUM, MAXIMUM_WITH_LEASE] {
            let mut random = StdRng::seed_from_u64(7);
            let mut backoff = Backoff::new(maximum);
            let mut middle = INITIAL;
            for number in 0..20 {
                let pause = backoff.pause(&mut random);
                let range = middle.mul_f64(0.8)..=middle.mul_f64(1.2).min(maximum);
                assert!(range.contains(&pause), "pause {number} of {pause:?} is not in {range:?}");
                middle = (middle * 2).min(maximum);
            }
            assert_eq!(middle, maximum);
        }
    }
}
