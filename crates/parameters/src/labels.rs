//! Labels of nodes.

use std::fmt;
use std::str::FromStr;

use polis_proto::common::NodeLabels;
use polis_proto::common::node_labels::Pair;

use crate::domain::is_dns_label;

/// Most labels of a node (metropolis.md, G.5).
pub const MAX_LABELS: usize = 128;

/// Longest name of a label, without its prefix, and longest value, in characters (metropolis.md, G.5).
const MAX_LENGTH: usize = 63;

/// Longest prefix of a label's key, in characters: that of a DNS name (RFC 1035, 2.3.4).
const MAX_PREFIX_LENGTH: usize = 253;

/// Longest text of a bad label that is repeated to the user, in characters: enough to recognise it.
const MAX_SHOWN: usize = 80;

/// One valid label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    key: String,
    value: String,
}

/// What is wrong with a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// Written without `=`.
    #[error("it is not of the form KEY=VALUE")]
    NoValue,
    /// The key's prefix, before the `/`, is malformed.
    #[error("the part of its key before the / is not a lower-case DNS name of at most {MAX_PREFIX_LENGTH} characters")]
    Prefix,
    /// The key is malformed.
    #[error(
        "its key must have 1 to {MAX_LENGTH} characters of A-Z, a-z, 0-9, '.', '_' and '-' and begin and end with a letter \
         or digit; a DNS name and one / may stand before it"
    )]
    Key,
    /// The value is malformed.
    #[error(
        "its value must have at most {MAX_LENGTH} characters of A-Z, a-z, 0-9, '.', '_' and '-' and begin and end with a \
         letter or digit"
    )]
    Value,
    /// Another label has the same key.
    #[error("an earlier label has the same key")]
    Duplicate,
    /// There are more than [`MAX_LABELS`].
    #[error("a node has at most {MAX_LABELS} labels")]
    TooMany,
}

/// A label that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelFault {
    /// The label as it was given, cut to a length that can be shown and with control characters escaped.
    pub label: String,
    /// What is wrong with it.
    pub error: LabelError,
}

/// Valid labels of one node: at most [`MAX_LABELS`], each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<Label>);

impl Label {
    /// Checks a key and a value.
    ///
    /// # Errors
    ///
    /// The first rule that they break.
    pub fn new(key: &str, value: &str) -> Result<Self, LabelError> {
        let name = match key.split_once('/') {
            None => key,
            Some((prefix, name)) => {
                if prefix.len() > MAX_PREFIX_LENGTH || !prefix.split('.').all(is_dns_label) {
                    return Err(LabelError::Prefix);
                }
                name
            }
        };
        if !is_word(name) {
            return Err(LabelError::Key);
        }
        if !value.is_empty() && !is_word(value) {
            return Err(LabelError::Value);
        }
        Ok(Self { key: key.into(), value: value.into() })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value; may be empty.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl FromStr for Label {
    type Err = LabelError;

    /// Takes `KEY=VALUE`.
    fn from_str(text: &str) -> Result<Self, LabelError> {
        let (key, value) = text.split_once('=').ok_or(LabelError::NoValue)?;
        Self::new(key, value)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.key, self.value)
    }
}

impl fmt::Display for LabelFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "label {}: {}", self.label, self.error)
    }
}

impl Labels {
    /// Takes the good labels of `message` and names the others, in their order.
    #[must_use]
    pub fn from_wire(message: NodeLabels) -> (Self, Vec<LabelFault>) {
        let (mut labels, mut faults) = (Self::default(), Vec::new());
        for pair in message.pairs {
            if let Err(error) = Label::new(&pair.key, &pair.value).and_then(|label| labels.push(label)) {
                faults.push(LabelFault { label: shown(&pair), error });
            }
        }
        (labels, faults)
    }

    /// Adds `label`.
    ///
    /// # Errors
    ///
    /// When its key is already there, or there are [`MAX_LABELS`] already.
    pub fn push(&mut self, label: Label) -> Result<(), LabelError> {
        if self.0.iter().any(|known| known.key == label.key) {
            return Err(LabelError::Duplicate);
        }
        if self.0.len() == MAX_LABELS {
            return Err(LabelError::TooMany);
        }
        self.0.push(label);
        Ok(())
    }

    /// The labels in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &Label> {
        self.0.iter()
    }

    /// The message on the wire.
    #[must_use]
    pub fn to_wire(&self) -> NodeLabels {
        let pairs = self.0.iter().map(|label| Pair { key: label.key.clone(), value: label.value.clone() });
        NodeLabels { pairs: pairs.collect() }
    }
}

/// Whether `text` is 1 to 63 characters of the allowed ones with a letter or digit at both ends.
fn is_word(text: &str) -> bool {
    (1..=MAX_LENGTH).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

fn shown(pair: &Pair) -> String {
    let whole: String = format!("{}={}", pair.key, pair.value).escape_debug().collect();
    if whole.chars().count() <= MAX_SHOWN {
        return whole;
    }
    whole.chars().take(MAX_SHOWN).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values() {
        let long = "a".repeat(63);
        let too_long = "a".repeat(64);
        let long_prefix = format!("{}/x", ["a"; 128].join("."));
        let table: &[(&str, &str, Result<(), LabelError>)] = &[
            ("site", "lab-1", Ok(())),
            ("example.com/rack", "r07", Ok(())),
            ("empty", "", Ok(())),
            (&long, &long, Ok(())),
            ("A.b_c-9", "Z", Ok(())),
            ("", "v", Err(LabelError::Key)),
            ("-x", "y", Err(LabelError::Key)),
            ("x-", "y", Err(LabelError::Key)),
            ("x y", "z", Err(LabelError::Key)),
            (&too_long, "v", Err(LabelError::Key)),
            ("ü", "v", Err(LabelError::Key)),
            ("a/b/c", "v", Err(LabelError::Key)),
            ("/b", "v", Err(LabelError::Prefix)),
            ("Example.com/b", "v", Err(LabelError::Prefix)),
            (&long_prefix, "v", Err(LabelError::Prefix)),
            ("k", &too_long, Err(LabelError::Value)),
            ("k", ".v", Err(LabelError::Value)),
            ("k", "a\nb", Err(LabelError::Value)),
        ];
        for (key, value, expect) in table {
            assert_eq!(Label::new(key, value).map(|_| ()), *expect, "{key}={value}");
        }
    }

    #[test]
    fn text_form_goes_both_ways() {
        assert_eq!("a=b".parse::<Label>().unwrap().to_string(), "a=b");
        assert_eq!("a=".parse::<Label>().unwrap().value(), "");
        assert_eq!("a".parse::<Label>(), Err(LabelError::NoValue));
        assert_eq!("a=b=c".parse::<Label>(), Err(LabelError::Value));
    }

    #[test]
    fn bad_labels_are_left_out_and_named() {
        let pair = |key: &str, value: &str| Pair { key: key.into(), value: value.into() };
        let mut pairs: Vec<Pair> = (0..=MAX_LABELS).map(|number| pair(&format!("k{number}"), "v")).collect();
        pairs.insert(1, pair("k0", "again"));
        pairs.insert(1, pair("-bad\u{1b}[2J", "x"));
        let (labels, faults) = Labels::from_wire(NodeLabels { pairs });
        assert_eq!(labels.iter().count(), MAX_LABELS);
        let faults: Vec<_> = faults.iter().map(|fault| (&*fault.label, fault.error.clone())).collect();
        assert_eq!(
            faults,
            [
                ("-bad\\u{1b}[2J=x", LabelError::Key),
                ("k0=again", LabelError::Duplicate),
                ("k128=v", LabelError::TooMany)
            ]
        );
    }
}
