//! Raft timing: how fast members notice a dead leader, and how long a member alone waits for itself. Pure.

use std::time::Duration;

/// Raft timing. It is a start flag of etcd: to change it, etcd is restarted.
///
/// The order of a change keeps leadership calm: from one member to two, the founder is restarted with a network timing
/// before the promotion; from two to one, after the removal; to another pace, followers first and the leader last, after
/// it has handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// For the only member of its cluster. It is elected by nobody but itself, so that the election timeout is nothing
    /// but waiting: it makes up most of the time from exec to the first write.
    Alone,
    /// For members that speak over a network of this pace.
    Network(Pace),
}

/// How fast the network between the members and their disks are, in classes: a few that differ clearly, so that timing
/// does not follow every breath of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pace {
    /// One machine or one local network, with disks that sync at once: what is assumed while nothing was measured.
    #[default]
    Near,
    /// One region, or disks that spin.
    Regional,
    /// A continent. etcd's own defaults.
    Far,
    /// All that is slower.
    Remote,
}

/// Heartbeat of a member alone. Every one of them wakes etcd, so that shorter ones are paid for while idle: with 10 ms etcd
/// takes 0.8 % of a processor, with 5 ms 1.4 %, with 2 ms 2.6 %.
const ALONE_HEARTBEAT: Duration = Duration::from_millis(10);
/// Election timeout of a member alone: five heartbeats, the fewest that etcd takes. It waits for one to five heartbeats before
/// it elects itself; with ten it would be up to ten, and no more awake meanwhile.
const ALONE_ELECTION: Duration = Duration::from_millis(50);

/// Election timeout over a network, in heartbeats: etcd's own ratio. A leader is missed after nine lost heartbeats.
const HEARTBEATS_PER_ELECTION: u32 = 10;

/// Round trips that fit into a heartbeat: a measured round trip is the shortest of several, and others take longer.
const ROUND_TRIPS_PER_HEARTBEAT: u32 = 2;

/// Times by which a faster pace must be good before it is taken again, so that a network at the edge of a class does not
/// make members restart to and fro.
const MARGIN_FOR_FASTER: u32 = 2;

impl Pace {
    /// All classes, the fastest first.
    pub const ALL: [Self; 4] = [Self::Near, Self::Regional, Self::Far, Self::Remote];

    const fn heartbeat(self) -> Duration {
        Duration::from_millis(match self {
            Self::Near => 25,
            Self::Regional => 50,
            Self::Far => 100,
            Self::Remote => 300,
        })
    }

    /// The pace to go on with when leaders are lost at this one for no other reason; `None` when there is none. It begins at the
    /// class of etcd's own defaults, as another change is another restart.
    #[must_use]
    pub const fn calmer(self) -> Option<Self> {
        match self {
            Self::Near | Self::Regional => Some(Self::Far),
            Self::Far => Some(Self::Remote),
            Self::Remote => None,
        }
    }

    /// The fastest pace that is good for this round trip to the farthest member and this time to sync the log to disk: two
    /// round trips fit into a heartbeat, and ten rounds of both into an election timeout.
    #[must_use]
    pub fn of(round_trip: Duration, sync: Duration) -> Self {
        let good = |pace: &Self| {
            round_trip * ROUND_TRIPS_PER_HEARTBEAT <= pace.heartbeat() && round_trip + sync <= pace.heartbeat()
        };
        Self::ALL.into_iter().find(good).unwrap_or(Self::Remote)
    }

    /// The pace to go on with when this one is used and these are measured: a slower one as soon as it is needed, a faster
    /// one only when it would be good for twice what was measured.
    #[must_use]
    pub fn follow(self, round_trip: Duration, sync: Duration) -> Self {
        let needed = Self::of(round_trip, sync);
        if needed > self {
            needed
        } else {
            Self::of(round_trip * MARGIN_FOR_FASTER, sync * MARGIN_FOR_FASTER).min(self)
        }
    }
}

impl Timing {
    /// How often a leader speaks.
    #[must_use]
    pub const fn heartbeat(self) -> Duration {
        match self {
            Self::Alone => ALONE_HEARTBEAT,
            Self::Network(pace) => pace.heartbeat(),
        }
    }

    /// How long a leader may be silent before its followers elect another.
    #[must_use]
    pub const fn election(self) -> Duration {
        match self {
            Self::Alone => ALONE_ELECTION,
            Self::Network(pace) => pace.heartbeat().saturating_mul(HEARTBEATS_PER_ELECTION),
        }
    }

    /// Whether this is the timing of a member that has others.
    #[must_use]
    pub const fn is_network(self) -> bool {
        matches!(self, Self::Network(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_pace_follows_from_round_trip_and_sync() {
        for (round_trip, sync, expected) in [
            (0, 0, Pace::Near),
            (1, 5, Pace::Near),
            (12, 13, Pace::Near),
            (13, 0, Pace::Regional),
            (1, 25, Pace::Regional),
            (25, 25, Pace::Regional),
            (26, 0, Pace::Far),
            (1, 60, Pace::Far),
            (50, 50, Pace::Far),
            (51, 0, Pace::Remote),
            (1, 200, Pace::Remote),
            (10_000, 10_000, Pace::Remote),
        ] {
            assert_eq!(Pace::of(ms(round_trip), ms(sync)), expected, "{round_trip} ms, {sync} ms");
        }
    }

    #[test]
    fn a_slower_pace_is_taken_at_once_and_a_faster_one_only_with_a_margin() {
        for (now, round_trip, sync, expected) in [
            (Pace::Near, 1, 1, Pace::Near),
            (Pace::Near, 13, 0, Pace::Regional),
            (Pace::Near, 80, 0, Pace::Remote),
            (Pace::Regional, 12, 0, Pace::Regional),
            (Pace::Regional, 7, 0, Pace::Regional),
            (Pace::Regional, 6, 0, Pace::Near),
            (Pace::Regional, 1, 13, Pace::Regional),
            (Pace::Remote, 1, 1, Pace::Near),
            (Pace::Remote, 20, 0, Pace::Far),
            (Pace::Remote, 45, 0, Pace::Remote),
        ] {
            assert_eq!(now.follow(ms(round_trip), ms(sync)), expected, "{now:?}: {round_trip} ms, {sync} ms");
        }
    }

    #[test]
    fn a_calmer_pace_is_slower_and_the_slowest_has_none() {
        for pace in Pace::ALL {
            assert!(pace.calmer().map_or(pace == Pace::Remote, |calmer| calmer > pace), "{pace:?}");
        }
    }

    #[test]
    fn every_timing_is_one_that_etcd_takes_and_round_trips_fit() {
        let all = Pace::ALL.map(Timing::Network);
        for timing in [Timing::Alone].into_iter().chain(all) {
            assert!(timing.election() >= timing.heartbeat() * 5, "{timing:?}");
            assert!(timing.election() <= ms(50_000), "{timing:?}");
        }
        assert!(all.is_sorted_by_key(|timing| timing.election()));
    }
}
