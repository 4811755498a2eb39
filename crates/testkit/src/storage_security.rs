//! How the suites have nodes protect their data: the same tests run on plain and on encrypted data.

use std::env;

/// Environment variable that says it: absent or `insecure`, or `authenticated`.
const VARIABLE: &str = "POLIS_TEST_STORAGE";

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
