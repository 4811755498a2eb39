//! How many calls strangers may make: a bucket of tokens for each place in the network.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::room::Holder;

/// Most buckets that are kept. One that is full is as good as none, so there are only those of the last seconds.
const MAX_BUCKETS: usize = 4_096;

/// How a bucket is filled.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Tokens per second.
    pub per_second: f64,
    /// Tokens of a full bucket.
    pub at_once: f64,
}

/// A bucket of tokens, one for each thing that is done: how often it may be done.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub const fn full(rate: Rate, now: Instant) -> Self {
        Self { tokens: rate.at_once, at: now }
    }

    /// Takes one token. False if there is none.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let tokens = self.level(rate, now);
        let enough = tokens >= 1.0;
        *self = Self { tokens: if enough { tokens - 1.0 } else { tokens }, at: now };
        enough
    }

    fn level(&self, rate: Rate, now: Instant) -> f64 {
        let filled = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_second;
        (self.tokens + filled).min(rate.at_once)
    }
}

/// A bucket for each place in the network.
pub(super) struct Buckets {
    rate: Rate,
    buckets: Mutex<HashMap<Holder, Bucket>>,
}

impl Buckets {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Takes one token. False if there is none: the call is not to be made.
    pub(super) fn take(&self, holder: Holder, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&holder) {
            self.forget(&mut buckets, now);
        }
        buckets.entry(holder).or_insert(Bucket::full(self.rate, now)).take(self.rate, now)
    }

    /// Makes room: forgets the fuller half, and with it all that are full. Those that have asked for most are remembered.
    fn forget(&self, buckets: &mut HashMap<Holder, Bucket>, now: Instant) {
        let mut levels: Vec<f64> = buckets.values().map(|bucket| bucket.level(self.rate, now)).collect();
        let middle = levels.len() / 2;
        let (_, middle, _) = levels.select_nth_unstable_by(middle, f64::total_cmp);
        let middle = *middle;
        buckets.retain(|_, bucket| bucket.level(self.rate, now) < middle);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    fn holder(number: u32) -> Holder {
        Holder::at(Ipv4Addr::from(number).into())
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let buckets = Buckets::new(Rate { per_second: 2.0, at_once: 5.0 });
        let start = Instant::now();
        let taken = |after: Duration| (0..10).filter(|_| buckets.take(holder(1), start + after)).count();
        assert_eq!(taken(Duration::ZERO), 5);
        assert_eq!(taken(Duration::from_millis(900)), 1);
        assert_eq!(taken(Duration::from_millis(1_000)), 1);
        assert_eq!(taken(Duration::from_secs(100)), 5);
    }

    #[test]
    fn one_place_does_not_take_from_another() {
        let buckets = Buckets::new(Rate { per_second: 1.0, at_once: 1.0 });
        let now = Instant::now();
        assert!(buckets.take(holder(1), now));
        assert!(!buckets.take(holder(1), now));
        assert!(buckets.take(holder(2), now));
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let buckets = Buckets::new(Rate { per_second: 1.0, at_once: 3.0 });
        let now = Instant::now();
        for _ in 0..3 {
            assert!(buckets.take(holder(0), now));
        }
        for number in 1..=20_000 {
            assert!(buckets.take(holder(number), now));
        }
        assert!(buckets.buckets.lock().unwrap().len() <= MAX_BUCKETS);
        // The one that has emptied its bucket is not forgotten for those who have not.
        assert!(!buckets.take(holder(0), now));
    }
}
