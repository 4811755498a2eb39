//! The X25519 key of a node, to which shares of other nodes' unlock keys are encrypted.

use std::fmt;

use curve25519_dalek::MontgomeryPoint;
use polis_secret::Secret32;

/// An X25519 private key: 32 random bytes that are clamped when used, as RFC 7748 says.
#[derive(Clone, PartialEq, Eq)]
pub struct ShareKey(Secret32);

impl ShareKey {
    /// Makes a key from the kernel's random number generator.
    #[must_use]
    pub fn generate() -> Self {
        Self(Secret32::random())
    }

    /// The key with these 32 secret bytes. Every 32 bytes are a key.
    #[must_use]
    pub const fn from_secret(secret: Secret32) -> Self {
        Self(secret)
    }

    /// The 32 secret bytes, to be stored under a seal.
    #[must_use]
    pub const fn secret(&self) -> &Secret32 {
        &self.0
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> SharePublicKey {
        SharePublicKey(MontgomeryPoint::mul_base_clamped(*self.0.expose()).to_bytes())
    }
}

impl fmt::Debug for ShareKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ShareKey(public {})", self.public())
    }
}

/// An X25519 public key. Text form: 64 lower case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharePublicKey([u8; 32]);

impl SharePublicKey {
    /// Takes over `bytes`; X25519 has a use for every 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for SharePublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_half_is_the_one_that_openssl_derives() {
        let mut secret = [0; 32];
        for (index, byte) in (0..).zip(&mut secret) {
            *byte = index;
        }
        let key = ShareKey::from_secret(Secret32::new(secret));
        assert_eq!(key.public().to_string(), "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f");
    }

    #[test]
    fn stored_bytes_lead_back_to_the_key() {
        let key = ShareKey::generate();
        assert_eq!(ShareKey::from_secret(key.secret().clone()), key);
        assert_ne!(ShareKey::generate().public(), key.public());
        assert_eq!(SharePublicKey::new(*key.public().as_bytes()), key.public());
        assert_eq!(format!("{key:?}"), format!("ShareKey(public {})", key.public()));
    }
}
