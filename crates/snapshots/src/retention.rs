//! Which snapshots are kept. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::name::SnapshotName;

/// How many are kept at most: half a day of hourly ones, so that a mistake of the night is found by the morning. Each may be as
/// large as the quota of etcd's database, 2 GiB; a few MiB are usual.
pub const KEPT: usize = 12;

/// Age after which one is removed, if there is a newer one: who puts back a state that is older loses more than he gains, and what was
/// deleted is to be gone some day.
pub const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Those to be removed.
#[must_use]
pub(crate) fn expired(mut names: Vec<SnapshotName>, now: Timestamp) -> Vec<SnapshotName> {
    names.sort_unstable();
    names.reverse();
    let is_expired = |(index, name): &(usize, SnapshotName)| {
        // The newest stays, whatever its age.
        *index >= KEPT || *index > 0 && name.age(now) > MAX_AGE.as_secs()
    };
    names.into_iter().enumerate().filter(is_expired).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn days_ago(days: &[i64]) -> Vec<SnapshotName> {
        days.iter().map(|days| SnapshotName { seconds: 100 * DAY - days * DAY, revision: 1 }).collect()
    }

    #[test]
    fn the_newest_are_kept_and_old_ones_go_but_never_the_last() {
        let now = Timestamp::from_second(100 * DAY).unwrap();
        let many: Vec<i64> = (0..20).collect();
        for (names, expected) in [
            (vec![], vec![]),
            (vec![50], vec![]),
            (vec![7], vec![]),
            (vec![50, 40], vec![50]),
            (vec![1, 8, 2, 7], vec![8]),
            (many, (8..20).collect()),
            (vec![0; 14], vec![0; 2]),
            // Taken under a clock that was ahead.
            (vec![-3, 1, 9], vec![9]),
        ] {
            assert_eq!(expired(days_ago(&names), now), days_ago(&expected), "{names:?}");
        }
    }
}
