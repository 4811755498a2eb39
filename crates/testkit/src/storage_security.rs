//! How the suites have nodes protect their data: the same tests run on plain and on encrypted data.

use std::env;

/// Environment variable that says it: absent or `insecure`, or `authenticated`.
const VARIABLE: &str = "POLIS_TEST_STORAGE";

/// Tests that are not run on encrypted data, each with the reason. Until members can unlock each other without a running cluster, a
/// cluster of three or more whose quorum is gone does not come back: the half of the key that it keeps is nowhere else.
const NO_QUORUM_STAYS: [(&str, &str); 2] = [
    ("all_members_die_at_once_and_come_back", "all three members are killed at once"),
    ("nodes_that_all_moved_while_stopped_find_each_other", "all three members are stopped at once"),
];

/// How nodes of the suites protect their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageSecurity {
    /// Not at all.
    Insecure,
    /// Encrypted, with changes detected.
    Authenticated,
}

impl StorageSecurity {
    /// What this run of the suites is for.
    ///
    /// # Panics
    ///
    /// When the variable has a value that means nothing.
    #[must_use]
    pub fn of_this_run() -> Self {
        match env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "insecure") => Self::Insecure,
            Ok("authenticated") => Self::Authenticated,
            Ok(other) => panic!("{VARIABLE} is {other:?}; known are insecure and authenticated"),
        }
    }

    /// Whether a test is left out in this run; says why.
    #[must_use]
    pub fn leaves_out(test: &str) -> bool {
        if Self::of_this_run() == Self::Insecure {
            return false;
        }
        let found = NO_QUORUM_STAYS.iter().find(|(name, _)| *name == test);
        if let Some((name, reason)) = found {
            println!("{name} is left out on encrypted data, as no quorum stays up: {reason}");
        }
        found.is_some()
    }

    /// Its name on the command line of `polis`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insecure => "insecure",
            Self::Authenticated => "authenticated",
        }
    }

    /// What `polis parameters bootstrap` is told: never to use a TPM, as this machine may have one.
    #[must_use]
    pub fn bootstrap_arguments(self) -> [&'static str; 4] {
        ["--storage-security", self.name(), "--tpm-mode", "disabled"]
    }
}
