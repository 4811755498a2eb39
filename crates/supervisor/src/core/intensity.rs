//! How often something happened lately.

use std::collections::VecDeque;
use std::time::Duration;

/// The window over which restarts are counted.
pub const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// Restarts within the window that are counted; a runnable that restarts more often than twice a second is restarted
/// by its siblings, and more precision helps nobody.
pub const RESTARTS_COUNTED: usize = 128;

/// The moments of the last events, as times since the start of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Intensity(VecDeque<Duration>);

impl Intensity {
    /// Something happened now.
    pub(crate) fn record(&mut self, now: Duration) {
        self.forget_old(now);
        if self.0.len() == RESTARTS_COUNTED {
            self.0.pop_front();
        }
        self.0.push_back(now);
    }

    /// How often it happened within the window before `now`.
    pub(crate) fn count(&self, now: Duration) -> u32 {
        let count = self.0.iter().filter(|at| now.saturating_sub(**at) < RESTART_WINDOW).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// When the count will be below `limit` if nothing more happens; `None` when it is already.
    pub(crate) fn below(&self, limit: u32, now: Duration) -> Option<Duration> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        let decisive = *self.0.get(self.0.len().checked_sub(limit)?)?;
        let at = decisive + RESTART_WINDOW;
        (at > now).then_some(at)
    }

    fn forget_old(&mut self, now: Duration) {
        while self.0.front().is_some_and(|at| now.saturating_sub(*at) >= RESTART_WINDOW) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_leave_the_window_after_a_minute() {
        let mut intensity = Intensity::default();
        assert_eq!(intensity.below(1, Duration::ZERO), None);
        for second in [0, 10, 20] {
            intensity.record(Duration::from_secs(second));
        }
        for (now, count) in [(20, 3), (59, 3), (60, 2), (69, 2), (70, 1), (80, 0)] {
            assert_eq!(intensity.count(Duration::from_secs(now)), count, "at {now} s");
        }
        let now = Duration::from_secs(20);
        for (limit, below) in [(1, Some(80)), (2, Some(70)), (3, Some(60)), (4, None)] {
            assert_eq!(intensity.below(limit, now), below.map(Duration::from_secs), "limit {limit}");
        }
        assert_eq!(intensity.below(3, Duration::from_secs(60)), None);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut intensity = Intensity::default();
        for _ in 0..10 * RESTARTS_COUNTED {
            intensity.record(Duration::from_secs(1));
        }
        assert_eq!(intensity.count(Duration::from_secs(1)) as usize, RESTARTS_COUNTED);
    }
}
