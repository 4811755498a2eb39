//! When a member announces itself, and how many announcements it looks at. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// How often a member announces itself. A node that has just started is heard within this time.
const INTERVAL: Duration = Duration::from_secs(3);

/// How long there must be no leader before it begins: longer than an election takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Announcements that are looked at at a time; each costs a signature to check. Nine members that announce themselves are fewer.
const BURST: u32 = 32;

/// Pause after that many. What comes meanwhile and finds no room in the system is lost, which is what it is for.
pub(super) const BURST_PAUSE: Duration = Duration::from_millis(500);

/// When the next announcement is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) due: Option<Instant>,
    last: Option<Instant>,
    lost: bool,
}

impl Schedule {
    /// Whether this member has lost the others.
    pub(super) fn see(&mut self, lost: bool, now: Instant) {
        if lost && !self.lost {
            self.due = Some(self.not_before(now + PATIENCE));
        } else if !lost && self.lost {
            self.due = None;
        }
        self.lost = lost;
    }

    /// Another member has announced itself: it is told where this one is.
    pub(super) fn answer(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(self.not_before(now));
        }
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.last = Some(now);
        self.due = self.lost.then(|| now + INTERVAL);
    }

    /// Announcements are an interval apart, whatever they are made for.
    fn not_before(&self, time: Instant) -> Instant {
        self.last.map_or(time, |last| time.max(last + INTERVAL))
    }
}

/// How many datagrams are looked at.
#[derive(Debug)]
pub(super) struct Budget {
    since: Instant,
    spent: u32,
}

impl Budget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, spent: 0 }
    }

    /// One more; returns whether it is time to pause.
    pub(super) fn spend(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= BURST_PAUSE {
            *self = Self::new(now);
        }
        self.spent += 1;
        let is_over = self.spent >= BURST;
        if is_over {
            *self = Self::new(now);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_member_announces_itself_while_it_has_lost_the_others() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.see(false, start);
        assert_eq!(schedule.due, None);
        schedule.see(true, start);
        assert_eq!(schedule.due, Some(start + PATIENCE));
        // Looking again is no reason to wait longer.
        schedule.see(true, start + ms(500));
        assert_eq!(schedule.due, Some(start + PATIENCE));
        schedule.sent(start + PATIENCE);
        assert_eq!(schedule.due, Some(start + PATIENCE + INTERVAL));
        schedule.see(false, start + ms(1500));
        assert_eq!(schedule.due, None);
        // An election that flaps does not make a flood.
        schedule.see(true, start + ms(1600));
        assert_eq!(schedule.due, Some(start + PATIENCE + INTERVAL));
    }

    #[test]
    fn another_is_answered_once_and_not_too_often() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.answer(start);
        assert_eq!(schedule.due, Some(start));
        schedule.sent(start);
        assert_eq!(schedule.due, None);
        schedule.answer(start + ms(10));
        schedule.answer(start + ms(20));
        assert_eq!(schedule.due, Some(start + INTERVAL));
    }

    #[test]
    fn a_flood_is_looked_at_in_bursts() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let paused = (0..BURST * 2).filter(|_| budget.spend(start)).count();
        assert_eq!(paused, 2);
        // What comes slowly never waits.
        let mut budget = Budget::new(start);
        assert!((1..1000).all(|number| !budget.spend(start + BURST_PAUSE * number)));
    }
}
