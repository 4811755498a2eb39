//! [`SnapshotName`]: what the name of a snapshot's file says. Pure.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// End of the names.
const SUFFIX: &str = ".snapshot";

/// The name of a snapshot's file, `<seconds since 1970>-<revision>.snapshot`. Ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// When the state was last known to be what is in it, by the node's own clock, in seconds since 1970.
    pub seconds: i64,
    /// Revision of the store: everything up to it is there.
    pub revision: i64,
}

impl SnapshotName {
    /// How long before `now` it was taken, in seconds; 0 for one that a wrong clock has put into the future.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> u64 {
        now.as_second().saturating_sub(self.seconds).try_into().unwrap_or_default()
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}{SUFFIX}", self.seconds, self.revision)
    }
}

/// The text is no name of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a snapshot")]
pub struct NoSnapshotName;

impl FromStr for SnapshotName {
    type Err = NoSnapshotName;

    fn from_str(text: &str) -> Result<Self, NoSnapshotName> {
        let (seconds, revision) =
            text.strip_suffix(SUFFIX).and_then(|text| text.split_once('-')).ok_or(NoSnapshotName)?;
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0).ok_or(NoSnapshotName);
        let name = Self { seconds: number(seconds)?, revision: number(revision)? };
        // Only what is written exactly so is ours.
        if name.to_string() == text { Ok(name) } else { Err(NoSnapshotName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_no_other_is_ours() {
        let name = SnapshotName { seconds: 1_795_968_000, revision: 42 };
        assert_eq!(name.to_string(), "1795968000-42.snapshot");
        assert_eq!(name.to_string().parse(), Ok(name));
        for text in
            ["", "1-2", "1-2.db", "-2.snapshot", "1.snapshot", "01-2.snapshot", "1-+2.snapshot", "1--2.snapshot"]
        {
            assert_eq!(text.parse::<SnapshotName>(), Err(NoSnapshotName), "{text}");
        }
    }

    #[test]
    fn a_clock_that_was_wrong_makes_no_snapshot_old() {
        let name = SnapshotName { seconds: 1000, revision: 1 };
        for (now, age) in [(1000, 0), (1060, 60), (0, 0)] {
            assert_eq!(name.age(Timestamp::from_second(now).unwrap()), age);
        }
    }
}
