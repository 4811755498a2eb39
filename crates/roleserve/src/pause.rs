//! [`Pause`]: how long to wait before something that failed is tried again.

use std::time::Duration;

use rand::RngExt as _;

/// First pause: long enough for a node that is being elected.
const FIRST: Duration = Duration::from_millis(100);

/// Longest pause: nobody wants to wait much longer after the cluster is back, and a thousand nodes that ask every few seconds
/// are no load.
const LONGEST: Duration = Duration::from_secs(5);

/// A pause that doubles with each failure, with jitter, so that nodes that lost the same leader do not come back all at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pause {
    /// Waits, between a half and the whole of the present pause.
    pub(crate) async fn wait(&mut self) {
        let pause = self.next(rand::rng().random_range(0.5..=1.0));
        tokio::time::sleep(pause).await;
    }

    /// It has worked; the next failure begins with the first pause.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    fn next(&mut self, part: f64) -> Duration {
        let pause = self.0.mul_f64(part);
        self.0 = (self.0 * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_again() {
        let mut pause = Pause::default();
        let waited: Vec<u128> = (0..8).map(|_| pause.next(1.0).as_millis()).collect();
        assert_eq!(waited, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        pause.reset();
        assert_eq!(pause.next(0.5).as_millis(), 50);
    }
}
