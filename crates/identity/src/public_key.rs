//! The public half of an Ed25519 key.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};

/// An Ed25519 public key: 32 bytes that are known to be one.
///
/// The bytes are the canonical encoding of a point of large order, so two equal keys have equal bytes, and no signature
/// exists that such a key accepts for every message. Text form: 64 lower case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; Self::LENGTH]);

impl PublicKey {
    /// Length of a public key, in bytes.
    pub const LENGTH: usize = 32;

    /// Takes over `bytes` if they are a public key.
    ///
    /// # Errors
    ///
    /// When the bytes are not the canonical encoding of a point, or are one of the few points of small order.
    pub fn new(bytes: [u8; Self::LENGTH]) -> Result<Self, InvalidPublicKeyError> {
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| InvalidPublicKeyError::NotAPoint)?;
        if key.to_edwards().compress().as_bytes() != &bytes {
            return Err(InvalidPublicKeyError::NotCanonical);
        }
        if key.is_weak() {
            return Err(InvalidPublicKeyError::SmallOrder);
        }
        Ok(Self(bytes))
    }

    /// The public key of a private one, which is valid by construction.
    pub(crate) fn of(key: &ed25519_dalek::SigningKey) -> Self {
        Self(key.verifying_key().to_bytes())
    }

    /// The 32 bytes, as in certificates and on the wire.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// Checks that the private half of this key signed `message`.
    ///
    /// The check is the strict one: every message has one signature, and one that was altered without the key is
    /// refused.
    ///
    /// # Errors
    ///
    /// When it did not.
    pub fn verify(&self, message: &[u8], signature: &[u8; 64]) -> Result<(), WrongSignatureError> {
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| WrongSignatureError)?;
        key.verify_strict(message, &Signature::from_bytes(signature)).map_err(|_| WrongSignatureError)
    }
}

impl TryFrom<&[u8]> for PublicKey {
    type Error = InvalidPublicKeyError;

    fn try_from(bytes: &[u8]) -> Result<Self, InvalidPublicKeyError> {
        Self::new(bytes.try_into().map_err(|_| InvalidPublicKeyError::WrongLength { found: bytes.len() })?)
    }
}

impl FromStr for PublicKey {
    type Err = InvalidPublicKeyError;

    fn from_str(text: &str) -> Result<Self, InvalidPublicKeyError> {
        Self::try_from(&hex::decode(text).map_err(|source| InvalidPublicKeyError::NotHexadecimal { source })?[..])
    }
}

impl TryFrom<String> for PublicKey {
    type Error = InvalidPublicKeyError;

    fn try_from(text: String) -> Result<Self, InvalidPublicKeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({self})")
    }
}

/// Bytes or text that are not a [`PublicKey`].
#[derive(Debug, thiserror::Error)]
pub enum InvalidPublicKeyError {
    /// Not 32 bytes.
    #[error("an Ed25519 public key has 32 bytes, found {found}")]
    WrongLength {
        /// Length that was given, in bytes.
        found: usize,
    },
    /// The text is not hexadecimal.
    #[error("an Ed25519 public key is written as 64 hexadecimal digits")]
    NotHexadecimal {
        /// What is wrong with the digits.
        #[source]
        source: hex::FromHexError,
    },
    /// No point of the curve has this encoding.
    #[error("the bytes are not a point of the Ed25519 curve")]
    NotAPoint,
    /// A point, but written in another way than the only allowed one.
    #[error("the bytes are not the canonical encoding of an Ed25519 public key")]
    NotCanonical,
    /// One of the eight points with which signatures can be made up.
    #[error("the bytes are an Ed25519 point of small order, which is nobody's key")]
    SmallOrder,
}

/// A signature that the key did not make over this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature was not made by this key over this message")]
pub struct WrongSignatureError;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    #[test]
    fn only_canonical_points_of_large_order_are_keys() {
        let mut identity = [0; 32];
        identity[0] = 1;
        // y = 3 + p, the second way to write y = 3, which fits in 255 bits as p = 2^255 - 19.
        let mut second_form = [0xff; 32];
        second_form[0] = 0xf0;
        second_form[31] = 0x7f;
        let mut no_point = [0; 32];
        no_point[0] = 2;
        let check = |bytes: [u8; 32]| match PublicKey::new(bytes) {
            Ok(_) => "key",
            Err(InvalidPublicKeyError::NotAPoint) => "not a point",
            Err(InvalidPublicKeyError::NotCanonical) => "not canonical",
            Err(InvalidPublicKeyError::SmallOrder) => "small order",
            Err(InvalidPublicKeyError::WrongLength { .. } | InvalidPublicKeyError::NotHexadecimal { .. }) => "other",
        };
        assert_eq!(check(*NodeKey::generate().public().as_bytes()), "key");
        assert_eq!(check(identity), "small order");
        assert_eq!(check([0; 32]), "small order");
        assert_eq!(check(second_form), "not canonical");
        assert_eq!(check(no_point), "not a point");
    }

    #[test]
    fn text_and_bytes_lead_back_to_the_key_and_the_errors_say_what_is_wrong() {
        let key = NodeKey::generate().public();
        assert_eq!(key.to_string().parse::<PublicKey>().unwrap(), key);
        assert_eq!(PublicKey::try_from(&key.as_bytes()[..]).unwrap(), key);
        let short = PublicKey::try_from(&key.as_bytes()[..31]).unwrap_err();
        assert_eq!(short.to_string(), "an Ed25519 public key has 32 bytes, found 31");
        let text = "zz".parse::<PublicKey>().unwrap_err();
        assert_eq!(text.to_string(), "an Ed25519 public key is written as 64 hexadecimal digits");
    }

    #[test]
    fn a_signature_holds_for_its_message_and_its_key_only() {
        let key = NodeKey::generate();
        let mut signature = key.sign(b"message");
        assert_eq!(key.public().verify(b"message", &signature), Ok(()));
        assert_eq!(key.public().verify(b"massage", &signature), Err(WrongSignatureError));
        assert_eq!(NodeKey::generate().public().verify(b"message", &signature), Err(WrongSignatureError));
        signature[63] ^= 0x80;
        assert_eq!(key.public().verify(b"message", &signature), Err(WrongSignatureError));
    }

    #[test]
    fn files_hold_the_text() {
        let value = NodeKey::generate().public();
        let file = serde_json::to_string(&value).unwrap();
        assert_eq!(file, format!("\"{value}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&file).unwrap(), value);
        assert!(serde_json::from_str::<PublicKey>("\"\"").is_err());
    }
}
