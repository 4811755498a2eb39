//! [`DiskPath`]: a place below the root of a node, and nowhere else.

use std::fmt;
use std::path::{Path, PathBuf};

/// Longest name of a file or directory in bytes: file systems take 255, and a temporary adds 44 to the name of its file.
pub const NAME_LIMIT: usize = 200;

/// A path relative to the root of a node: names joined by `/`, none of them empty, `.` or `..`. The empty path is the
/// root itself. Such a path cannot leave the root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskPath(String);

impl DiskPath {
    /// The root of the node.
    #[must_use]
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Parses names joined by `/`; the empty string is the root.
    ///
    /// # Errors
    ///
    /// When one of the names is not allowed.
    pub fn parse(path: &str) -> Result<Self, InvalidName> {
        if path.is_empty() {
            return Ok(Self::root());
        }
        path.split('/').try_fold(Self::root(), |parent, name| parent.child(name))
    }

    /// The path of `name` in this directory.
    ///
    /// # Errors
    ///
    /// When `name` is empty, `.`, `..`, too long, or has a `/` or a zero byte in it.
    pub fn child(&self, name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > NAME_LIMIT {
            return Err(InvalidName { name: name.to_owned() });
        }
        Ok(self.child_unchecked(name))
    }

    /// As [`DiskPath::child`], for names that a directory listing gave or that were made from checked ones.
    pub(crate) fn child_unchecked(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}/{name}", self.0)) }
    }

    /// The directory that this path is in; none for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.split().map(|(parent, _)| parent)
    }

    /// The last name; none for the root.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.split().map(|(_, name)| name)
    }

    /// Directory and last name; none for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &str)> {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => Some((Self(parent.to_owned()), name)),
            None if self.0.is_empty() => None,
            None => Some((Self::root(), &self.0)),
        }
    }

    /// The names from the root down.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Whether this is `directory` or something below it.
    #[must_use]
    pub fn is_within(&self, directory: &Self) -> bool {
        directory.0.is_empty()
            || self.0.strip_prefix(&directory.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The text: names joined by `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as seen from outside, for a node whose root is `root`.
    #[must_use]
    pub fn under(&self, root: &Path) -> PathBuf {
        if self.0.is_empty() { root.to_owned() } else { root.join(&self.0) }
    }
}

impl fmt::Display for DiskPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}

impl fmt::Debug for DiskPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A name that no file or directory of a node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot be the name of a file: it is empty, `.`, `..`, longer than {NAME_LIMIT} bytes, or has a slash in it"
)]
pub struct InvalidName {
    /// The name.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_root_exist() {
        let table = [
            ("", true),
            ("a", true),
            ("a/b.c/d:0", true),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            ("..", false),
            ("a/../b", false),
            ("./a", false),
            ("a\0", false),
        ];
        for (text, valid) in table {
            assert_eq!(DiskPath::parse(text).is_ok(), valid, "{text:?}");
        }
        assert!(DiskPath::root().child(&"n".repeat(NAME_LIMIT + 1)).is_err());
    }

    #[test]
    fn a_path_knows_its_parts() {
        let path = DiskPath::parse("data/node/roles.0").unwrap();
        assert_eq!(path.name(), Some("roles.0"));
        assert_eq!(path.parent().unwrap().as_str(), "data/node");
        assert_eq!(path.names().collect::<Vec<_>>(), ["data", "node", "roles.0"]);
        assert_eq!(path.under(Path::new("/srv")), Path::new("/srv/data/node/roles.0"));
        assert_eq!(DiskPath::root().parent(), None);
        assert!(path.is_within(&DiskPath::root()));
        assert!(path.is_within(&DiskPath::parse("data").unwrap()));
        assert!(!path.is_within(&DiskPath::parse("dat").unwrap()));
    }
}
