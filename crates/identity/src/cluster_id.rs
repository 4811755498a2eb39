//! The name of a cluster.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::PublicKey;

/// The name of a cluster: 32 lower case hexadecimal digits, the first 16 bytes of SHA-256 of its CA's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId([u8; Self::LENGTH]);

impl ClusterId {
    /// Length of a cluster id, in bytes.
    pub const LENGTH: usize = 16;

    /// The name of the cluster whose certificate authority has this key.
    #[must_use]
    pub fn of(authority: &PublicKey) -> Self {
        let digest = Sha256::digest(authority.as_bytes());
        let mut bytes = [0; Self::LENGTH];
        bytes.copy_from_slice(&digest[..Self::LENGTH]);
        Self(bytes)
    }

    /// The id with these bytes, as a file holds them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a file.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = ParseClusterIdError;

    fn from_str(text: &str) -> Result<Self, ParseClusterIdError> {
        let mut bytes = [0; Self::LENGTH];
        hex::decode_to_slice(text, &mut bytes).map_err(|source| ParseClusterIdError { source })?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for ClusterId {
    type Error = ParseClusterIdError;

    fn try_from(text: String) -> Result<Self, ParseClusterIdError> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClusterId({self})")
    }
}

/// Text that is not a [`ClusterId`].
#[derive(Debug, thiserror::Error)]
#[error("a cluster id is written as 32 hexadecimal digits")]
pub struct ParseClusterIdError {
    /// What is wrong with the digits.
    #[source]
    source: hex::FromHexError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_start_of_the_digest_of_the_key() {
        // printf d75a...511a | xxd -r -p | sha256sum
        let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a".parse().unwrap();
        let id = ClusterId::of(&key);
        assert_eq!(id.to_string(), "21fe31dfa154a261626bf854046fd227");
        assert_eq!(id.to_string().parse::<ClusterId>().unwrap(), id);
        assert!("21fe".parse::<ClusterId>().is_err());
        assert_eq!(ClusterId::from_bytes(*id.as_bytes()), id);
    }

    #[test]
    fn files_hold_the_text() {
        let value = ClusterId::of(&crate::NodeKey::generate().public());
        let file = serde_json::to_string(&value).unwrap();
        assert_eq!(file, format!("\"{value}\""));
        assert_eq!(serde_json::from_str::<ClusterId>(&file).unwrap(), value);
        assert!(serde_json::from_str::<ClusterId>("\"\"").is_err());
    }
}
