//! The private half of a recovery key.

use std::fmt;

use hpke::Deserializable as _;
use polis_identity::ShareKey;
use polis_secret::Secret32;

use crate::cipher::Kem;
use crate::{Fingerprint, RecoveryPublicKey, RecoveryWords};

/// The private half of a recovery key: an X25519 key, 32 random bytes. It is on a machine only while it is made or used;
/// otherwise it is words that a person keeps.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryKey(Secret32);

impl RecoveryKey {
    /// Makes a key from the kernel's random number generator.
    #[must_use]
    pub fn generate() -> Self {
        Self(Secret32::random())
    }

    /// The key with these 32 secret bytes. Every 32 bytes are a key.
    pub(crate) const fn from_secret(secret: Secret32) -> Self {
        Self(secret)
    }

    pub(crate) const fn secret(&self) -> &Secret32 {
        &self.0
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> RecoveryPublicKey {
        RecoveryPublicKey::derived(*ShareKey::from_secret(self.0.clone()).public().as_bytes())
    }

    /// The name of the key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.public().fingerprint()
    }

    /// The key as words, for a person to keep.
    #[must_use]
    pub fn to_words(&self) -> RecoveryWords {
        RecoveryWords::of(self)
    }

    pub(crate) fn for_cipher(&self) -> <Kem as hpke::Kem>::PrivateKey {
        <Kem as hpke::Kem>::PrivateKey::from_bytes(self.0.expose()).expect("every 32 bytes are a key")
    }
}

impl fmt::Debug for RecoveryKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RecoveryKey({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_name_only() {
        let key = RecoveryKey::from_secret(Secret32::new([7; 32]));
        assert_eq!(format!("{key:?}"), format!("RecoveryKey({})", key.public().fingerprint()));
    }

    #[test]
    fn the_public_half_is_the_one_that_hpke_derives() {
        use hpke::{Kem as _, Serializable as _};

        let key = RecoveryKey::generate();
        assert_eq!(Kem::sk_to_pk(&key.for_cipher()).to_bytes().as_slice(), key.public().as_bytes());
        assert_ne!(RecoveryKey::generate(), key);
    }
}
