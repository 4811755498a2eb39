//! Distinguished names: where in the tree of a node something is.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest distinguished name in bytes. Names are made of runnables' names, a few deep, and seldom pass 100 bytes; the
/// bound makes the number of names a bound of their memory too.
pub const NAME_BYTES: usize = 1024;

/// A path in the tree of a node: parts joined by dots, `root.consensus.etcd` for example (metropolis.md B.1).
///
/// The empty name is the top of the tree, above every other. Cloning is cheap. Names are ordered part by part, so that
/// a name is directly followed by everything below it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DistinguishedName(Arc<str>);

/// Why a text is no distinguished name, or no part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Two dots in a row, a dot at the beginning or the end, or an empty part given to `child`.
    #[error("the name {0:?} has an empty part; a name is parts joined by single dots, like `root.network`")]
    EmptyPart(String),
    /// A dot inside one part.
    #[error("the part {0:?} of a name contains a dot; the dot separates parts")]
    DotInPart(String),
    /// Longer than [`NAME_BYTES`].
    #[error("a name of {0} bytes is too long; at most {NAME_BYTES} bytes are allowed")]
    TooLong(usize),
}

impl DistinguishedName {
    /// The top of the tree: the empty name.
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// Reads a name from its text; the empty text is the top of the tree.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > NAME_BYTES {
            return Err(NameError::TooLong(text.len()));
        }
        if !text.is_empty() && text.split('.').any(str::is_empty) {
            return Err(NameError::EmptyPart(text.into()));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The name of `part` directly below this one.
    pub fn child(&self, part: &str) -> Result<Self, NameError> {
        if part.is_empty() {
            return Err(NameError::EmptyPart(part.into()));
        }
        if part.contains('.') {
            return Err(NameError::DotInPart(part.into()));
        }
        if self.0.is_empty() { Self::parse(part) } else { Self::parse(&format!("{}.{part}", self.0)) }
    }

    /// The name directly above; the top of the tree has none.
    pub fn parent(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        Some(self.0.rsplit_once('.').map_or_else(Self::root, |(parent, _)| Self(Arc::from(parent))))
    }

    /// The parts from the top down; none for the top of the tree.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.').filter(|part| !part.is_empty())
    }

    /// Whether this name is `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self.0.strip_prefix(&*other.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for DistinguishedName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(other.parts())
    }
}

impl PartialOrd for DistinguishedName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for DistinguishedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl fmt::Debug for DistinguishedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

impl FromStr for DistinguishedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}
