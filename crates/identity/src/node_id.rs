//! The name of a node.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PublicKey;

const PREFIX: &str = "metropolis-";

/// The name of a node: `metropolis-` and 32 lower case hexadecimal digits, the first 16 bytes of its public key
/// (metropolis.md H.1).
///
/// It follows from the key, so it is known before there is a cluster, and it never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId([u8; Self::BYTES]);

impl NodeId {
    const BYTES: usize = 16;

    /// The name of the node that has this key.
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&key.as_bytes()[..Self::BYTES]);
        Self(bytes)
    }
}

impl From<&PublicKey> for NodeId {
    fn from(key: &PublicKey) -> Self {
        Self::of(key)
    }
}

impl FromStr for NodeId {
    type Err = ParseNodeIdError;

    fn from_str(text: &str) -> Result<Self, ParseNodeIdError> {
        let digits = text.strip_prefix(PREFIX).ok_or_else(|| ParseNodeIdError::Prefix { text: shorten(text) })?;
        if let Some(found) = digits.chars().find(|digit| !matches!(digit, '0'..='9' | 'a'..='f')) {
            return Err(ParseNodeIdError::Digit { text: shorten(text), found });
        }
        let mut bytes = [0; Self::BYTES];
        hex::decode_to_slice(digits, &mut bytes)
            .map_err(|_| ParseNodeIdError::Length { text: shorten(text), found: digits.len() })?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for NodeId {
    type Error = ParseNodeIdError;

    fn try_from(text: String) -> Result<Self, ParseNodeIdError> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through one string, so that a width in a format specification works.
        formatter.pad(&format!("{PREFIX}{}", hex::encode(self.0)))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "NodeId({self})")
    }
}

/// At most twice a node id of what somebody wrote instead of one, as it goes into an error message.
fn shorten(text: &str) -> String {
    const MAX_CHARACTERS: usize = 2 * (PREFIX.len() + 2 * NodeId::BYTES);
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text that is not a [`NodeId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNodeIdError {
    /// It does not start with `metropolis-`.
    #[error("{text:?} is not a node id: it does not start with \"metropolis-\"")]
    Prefix {
        /// The text, shortened.
        text: String,
    },
    /// A character after the prefix is not a lower case hexadecimal digit.
    #[error("{text:?} is not a node id: {found:?} is not one of the digits 0-9 and a-f")]
    Digit {
        /// The text, shortened.
        text: String,
        /// The first wrong character.
        found: char,
    },
    /// Not 32 digits after the prefix.
    #[error("{text:?} is not a node id: it has {found} digits after \"metropolis-\" and not 32")]
    Length {
        /// The text, shortened.
        text: String,
        /// Number of digits after the prefix.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    #[test]
    fn the_id_is_the_first_half_of_the_public_key() {
        let key = NodeKey::generate().public();
        let id = NodeId::of(&key);
        assert_eq!(id.to_string(), format!("metropolis-{}", &key.to_string()[..32]));
        assert_eq!(id.to_string().parse::<NodeId>(), Ok(id));
    }

    #[test]
    fn text_that_is_no_id_is_refused_with_the_reason() {
        let digits = "0123456789abcdef0123456789abcdef";
        let check = |text: &str, expected: &str| {
            assert_eq!(
                text.parse::<NodeId>().unwrap_err().to_string(),
                format!("{text:?} is not a node id: {expected}")
            );
        };
        check("", "it does not start with \"metropolis-\"");
        check(digits, "it does not start with \"metropolis-\"");
        check(&format!("Metropolis-{digits}"), "it does not start with \"metropolis-\"");
        check("metropolis-", "it has 0 digits after \"metropolis-\" and not 32");
        check(&format!("metropolis-{}", &digits[1..]), "it has 31 digits after \"metropolis-\" and not 32");
        check(&format!("metropolis-{digits}0"), "it has 33 digits after \"metropolis-\" and not 32");
        check(&format!("metropolis-{}F", &digits[1..]), "'F' is not one of the digits 0-9 and a-f");
        check(&format!("metropolis-{digits} "), "' ' is not one of the digits 0-9 and a-f");
        check("metropolis-é", "'é' is not one of the digits 0-9 and a-f");
    }

    #[test]
    fn a_very_long_text_is_not_repeated_whole() {
        let error = "é".repeat(100_000).parse::<NodeId>().unwrap_err().to_string();
        assert!(error.len() < 300, "{error}");
    }

    #[test]
    fn files_hold_the_text() {
        let value = NodeId::of(&NodeKey::generate().public());
        let file = serde_json::to_string(&value).unwrap();
        assert_eq!(file, format!("\"{value}\""));
        assert_eq!(serde_json::from_str::<NodeId>(&file).unwrap(), value);
        assert!(serde_json::from_str::<NodeId>("\"\"").is_err());
    }
}
