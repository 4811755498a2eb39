//! The version of Polis that this build is.
//!
//! All that a build says of its version comes from here, so that one place can make it another. With the feature `raised`, and
//! only then, the environment variable `POLIS_TEST_RAISE=N` makes the same binary play a build of N minor versions later: it
//! calls itself so, it writes its own files in versions of their formats that are higher by N, and it reads those below as
//! well, as a newer build would. A test of mixed versions thus needs no second build. The variable is read once.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::LazyLock;

/// A version of Polis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Differs when two versions cannot be in one cluster.
    pub major: u32,
    /// Two neighbours can be in one cluster.
    pub minor: u32,
    /// Differs in what nobody else sees.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The version as the package has it.
const BUILT: Version = Version {
    major: number(env!("CARGO_PKG_VERSION_MAJOR")),
    minor: number(env!("CARGO_PKG_VERSION_MINOR")),
    patch: number(env!("CARGO_PKG_VERSION_PATCH")),
};

/// Version of this build.
#[must_use]
pub fn version() -> Version {
    Version { minor: BUILT.minor + raise(), ..BUILT }
}

/// Version of this build, as text.
#[must_use]
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| version().to_string());
    &TEXT
}

/// By how much this build is later than it was built as: 0 outside of tests.
#[cfg(not(feature = "raised"))]
#[must_use]
pub const fn raise() -> u32 {
    0
}

/// By how much this build is later than it was built as: what a test says.
///
/// # Panics
///
/// When a test says what is no number.
#[cfg(feature = "raised")]
#[must_use]
pub fn raise() -> u32 {
    static RAISE: LazyLock<u32> = LazyLock::new(|| match std::env::var("POLIS_TEST_RAISE") {
        Ok(text) => text.parse().expect("POLIS_TEST_RAISE is a number"),
        Err(_) => 0,
    });
    *RAISE
}

/// The number that these digits say. A version that has others does not compile.
const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is no number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package() {
        // No test of this crate is run raised.
        assert_eq!(text(), env!("CARGO_PKG_VERSION"));
        assert_eq!((version(), raise()), (BUILT, 0));
    }
}
