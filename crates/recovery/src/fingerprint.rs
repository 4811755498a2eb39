//! Short names of keys, for people to compare.

use std::fmt;
use std::str::FromStr;

use polis_identity::PublicKey;
use sha2::{Digest as _, Sha256};

/// What is hashed before a recovery key, so that its fingerprint is that of nothing else.
const RECOVERY_LABEL: &[u8] = b"polis recovery key v1\0";
/// The same of a key that a node has made because its own cannot be unsealed.
const FRESH_LABEL: &[u8] = b"polis fresh key v1\0";

/// The short name of a key: 32 lower case hexadecimal digits, the first 16 bytes of SHA-256 of a label and the public half. Short
/// enough to be compared by eye, and long enough that nobody finds a second key for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; Self::LENGTH]);

impl Fingerprint {
    /// Length of a fingerprint, in bytes.
    pub const LENGTH: usize = 16;

    /// The name of the recovery key with this public half.
    pub(crate) fn of_recovery_key(public: &[u8; 32]) -> Self {
        Self::of(RECOVERY_LABEL, public)
    }

    /// The name of the key that a node shows which cannot unseal its own (cold-start.md, Recovery key): on its console, in its log
    /// and in its status, and for `polis unlock --fingerprint`.
    #[must_use]
    pub fn of_fresh_key(public: &PublicKey) -> Self {
        Self::of(FRESH_LABEL, public.as_bytes())
    }

    fn of(label: &[u8], public: &[u8; 32]) -> Self {
        let digest = Sha256::new().chain_update(label).chain_update(public).finalize();
        let mut bytes = [0; Self::LENGTH];
        bytes.copy_from_slice(&digest[..Self::LENGTH]);
        Self(bytes)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    /// Reads the text form: exactly 32 lower case hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let mut bytes = [0; Self::LENGTH];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) if !text.contains(|character: char| character.is_ascii_uppercase()) => Ok(Self(bytes)),
            Ok(()) | Err(_) => Err(ParseFingerprintError),
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
    }
}

/// A text that is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is {} lower case hexadecimal digits", 2 * Fingerprint::LENGTH)]
pub struct ParseFingerprintError;

#[cfg(test)]
mod tests {
    use polis_identity::JoinKey;

    use super::*;

    #[test]
    fn the_fingerprint_is_the_start_of_the_labelled_digest() {
        // printf 'polis recovery key v1\0<32 zero bytes>' | sha256sum
        let fingerprint = Fingerprint::of_recovery_key(&[0; 32]);
        assert_eq!(fingerprint.to_string(), "59870934d8d31d01d8cd852e6b901571");
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert_ne!(Fingerprint::of_recovery_key(&[1; 32]), fingerprint);
        let fresh = JoinKey::generate().public();
        assert_ne!(Fingerprint::of_fresh_key(&fresh), Fingerprint::of_recovery_key(fresh.as_bytes()));
        let upper = fingerprint.to_string().to_uppercase();
        for bad in ["", "0011", upper.as_str(), &format!("{fingerprint}0")] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(ParseFingerprintError), "{bad}");
        }
    }
}
