//! Which versions of etcd may hold a cluster, and why the others may not.

use std::fmt;
use std::str::FromStr;

/// Version of an etcd, such as `3.4.23`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number. Suffixes such as `-rc.1` or `+dfsg` are not kept.
    pub patch: u16,
}

impl Version {
    /// The version with these three numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The text is no version of three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of three numbers")]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let mut numbers = text.split(['-', '+', '~']).next().unwrap_or_default().split('.').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) => Ok(Self { major, minor, patch }),
            _ => Err(NotAVersion),
        }
    }
}

/// What Polis thinks of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Tested.
    Good,
    /// Expected to work, but not tested: accepted, and said in the log.
    Untested,
    /// Not accepted.
    Refused(Reason),
}

/// Why a version is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is known to lose committed data when it is killed.
    LosesData,
    /// It lacks what Polis relies on: learners and pre-vote.
    TooOld,
    /// Nobody has looked at it.
    TooNew,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LosesData => "this version can lose committed data when it is killed",
            Self::TooOld => "this version lacks what Polis relies on",
            Self::TooNew => "this version is newer than any that Polis knows",
        })
    }
}

/// What is accepted, for messages.
pub(crate) const WANTED: &str = "3.4.22 or later of 3.4, 3.5.6 or later of 3.5, or 3.6";

/// Judges `version`. Source: the plan's section on consensus; the data loss is etcd's own announcement for 3.5.0 to
/// 3.5.5 and for 3.4 before 3.4.22.
#[must_use]
pub(crate) const fn judge(version: Version) -> Verdict {
    match (version.major, version.minor, version.patch) {
        (3, 4, 22..) | (3, 5, 6..) => Verdict::Good,
        (3, 4 | 5, _) => Verdict::Refused(Reason::LosesData),
        (3, 6, _) => Verdict::Untested,
        (..3, _, _) | (3, ..4, _) => Verdict::Refused(Reason::TooOld),
        (3.., _, _) => Verdict::Refused(Reason::TooNew),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_judged_as_the_plan_says() {
        use Reason::{LosesData, TooNew, TooOld};
        for (text, expected) in [
            ("3.4.23", Verdict::Good),
            ("3.4.22", Verdict::Good),
            ("3.4.23+dfsg", Verdict::Good),
            ("3.4.21", Verdict::Refused(LosesData)),
            ("3.4.0", Verdict::Refused(LosesData)),
            ("3.5.0", Verdict::Refused(LosesData)),
            ("3.5.5", Verdict::Refused(LosesData)),
            ("3.5.6", Verdict::Good),
            ("3.5.21", Verdict::Good),
            ("3.6.0", Verdict::Untested),
            ("3.6.0-rc.1", Verdict::Untested),
            ("3.7.0", Verdict::Refused(TooNew)),
            ("4.0.0", Verdict::Refused(TooNew)),
            ("3.3.27", Verdict::Refused(TooOld)),
            ("2.3.8", Verdict::Refused(TooOld)),
        ] {
            assert_eq!(judge(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "3", "3.4", "3.4.x", "3.4.23.1", "v3.4.23", "3..23", "3.4.-1", "3.4.70000"] {
            assert_eq!(text.parse::<Version>(), Err(NotAVersion), "{text:?}");
        }
    }
}
