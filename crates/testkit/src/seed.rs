//! Randomness that can be had again: every random test prints its seed and takes it from the environment.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// Environment variable with the seed of a run that is to be repeated.
pub const SEED_VARIABLE: &str = "POLIS_SEED";

/// A generator of pseudo-random numbers: splitmix64. Small, and the same in every version of every crate, so that a seed
/// written down today means the same run in a year.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator for this run: from [`SEED_VARIABLE`], else a fresh one. The seed is printed.
    ///
    /// # Panics
    ///
    /// When the variable holds no number.
    #[must_use]
    pub fn for_this_run() -> Self {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number")),
            Err(_) => std::hash::RandomState::new().build_hasher().finish(),
        };
        println!("{SEED_VARIABLE}={seed}");
        Self(seed)
    }

    /// The generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A span of at most `longest`.
    pub fn span(&mut self, longest: Duration) -> Duration {
        let microseconds = u64::try_from(longest.as_micros()).expect("spans of tests are short");
        Duration::from_micros(self.below(microseconds + 1))
    }
}

/// Whether the full counts of a long run are asked for (`POLIS_SOAK=1`).
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("POLIS_SOAK").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // The first numbers of splitmix64 for the seed 0.
        let mut random = Random::new(0);
        assert_eq!([random.number(), random.number()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert!((0..1000).all(|_| random.span(Duration::from_millis(3)) <= Duration::from_millis(3)));
    }
}
