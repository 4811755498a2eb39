//! The cluster unlock key, and what commits to it without revealing it.

use std::fmt;

use polis_secret::Secret32;
use sha2::{Digest as _, Sha256};

/// What is hashed before the key. The cluster compares the same hash with the key that it keeps.
const CHECK_LABEL: &[u8] = b"polis cluster unlock key v1\0";

/// A node's cluster unlock key: the cluster's half of the key of its data, 256 random bits.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterUnlockKey(Secret32);

impl ClusterUnlockKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn new(secret: Secret32) -> Self {
        Self(secret)
    }

    /// The bytes.
    #[must_use]
    pub const fn secret(&self) -> &Secret32 {
        &self.0
    }

    /// What tells this key from others.
    #[must_use]
    pub fn check_value(&self) -> KeyCheckValue {
        KeyCheckValue(Sha256::new().chain_update(CHECK_LABEL).chain_update(self.0.expose()).finalize().into())
    }
}

impl fmt::Debug for ClusterUnlockKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClusterUnlockKey({:?})", self.check_value())
    }
}

/// SHA-256 over a label and a cluster unlock key. It gives nothing away, as the key has 256 random bits; but too few shares give a
/// wrong key without any sign, and this is the sign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyCheckValue([u8; 32]);

impl KeyCheckValue {
    /// The value with these bytes, as a file holds them.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a file.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyCheckValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("check value ")?;
        // Enough to tell keys apart in a log.
        self.0[..4].iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_never_changes_and_is_all_that_is_shown() {
        let key = ClusterUnlockKey::new(Secret32::new([1; 32]));
        // (printf 'polis cluster unlock key v1\0'; head -c 32 /dev/zero | tr '\0' '\1') | sha256sum
        let expected = "a6b8990831e192eaab5da9b00977ab7a9b3e686efb6e46fb393806aec9977bc7";
        let hex: String = key.check_value().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        assert_eq!(format!("{key:?}"), format!("ClusterUnlockKey(check value {})", &expected[..8]));
        assert_eq!(KeyCheckValue::new(*key.check_value().as_bytes()), key.check_value());
        assert_ne!(ClusterUnlockKey::new(Secret32::random()).check_value(), key.check_value());
    }
}
