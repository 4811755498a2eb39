//! [`Digest`]: what content is called by what it is.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// What the text of a digest begins with. SHA-256 is the one kind that every registry has.
const PREFIX: &str = "sha256:";

/// The SHA-256 of some content; as text `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no digest: it must be sha256: and 64 digits of 0-9 and a-f")]
pub struct InvalidDigest {
    /// The text.
    pub text: String,
}

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The hexadecimal digits alone.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest { text: text.to_owned() };
        let digits = text.strip_prefix(PREFIX).ok_or_else(invalid)?;
        // Content has one name: the same digits in upper case would be another file at a server.
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(invalid());
        }
        let bytes = hex::decode(digits).map_err(|_| invalid())?;
        bytes.try_into().map(Self).map_err(|_| invalid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_digests_are_one_to_one() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Digest::of(b"")));
        for text in ["", "sha256:", "sha512:00", &empty[..70], &empty.to_uppercase(), &format!("{empty}0"), &empty[7..]]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
        assert!(format!("sha256:{}", "AB".repeat(32)).parse::<Digest>().is_err());
    }
}
