//! Everything below a directory as it was at one moment, to show that nothing has changed since.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// One file, directory or other thing.
#[derive(Clone, PartialEq, Eq)]
struct Entry {
    /// Kind and permissions, as in `st_mode`.
    mode: u32,
    owner: (u32, u32),
    /// Tells a file from one that was put in its place.
    inode: u64,
    /// Also of directories: a file that came and went shows here.
    modified: (i64, i64),
    /// Of an ordinary file, or the target of a link.
    content: Option<Vec<u8>>,
}

/// Everything below a directory at one moment.
#[derive(Clone)]
pub struct Snapshot {
    directory: PathBuf,
    entries: BTreeMap<PathBuf, Entry>,
}

impl Snapshot {
    /// Looks at everything below `directory` and at the directory itself, or at one file.
    ///
    /// # Panics
    ///
    /// When something cannot be read.
    #[must_use]
    pub fn of(directory: &Path) -> Self {
        let mut snapshot = Self { directory: directory.to_owned(), entries: BTreeMap::new() };
        if fs::symlink_metadata(directory).is_ok() {
            snapshot.add(directory);
        }
        snapshot
    }

    fn add(&mut self, path: &Path) {
        let failed = |error| -> ! { panic!("{}: {error}", path.display()) };
        let data = fs::symlink_metadata(path).unwrap_or_else(|error| failed(error));
        let content = if data.is_file() {
            Some(fs::read(path).unwrap_or_else(|error| failed(error)))
        } else if data.is_symlink() {
            Some(fs::read_link(path).unwrap_or_else(|error| failed(error)).into_os_string().into_encoded_bytes())
        } else {
            None
        };
        if data.is_dir() {
            for entry in fs::read_dir(path).unwrap_or_else(|error| failed(error)) {
                self.add(&entry.unwrap_or_else(|error| failed(error)).path());
            }
        }
        let entry = Entry {
            mode: data.mode(),
            owner: (data.uid(), data.gid()),
            inode: data.ino(),
            modified: (data.mtime(), data.mtime_nsec()),
            content,
        };
        self.entries.insert(path.to_owned(), entry);
    }

    /// What has changed since, one line each; nothing when all is exactly as it was.
    #[must_use]
    pub fn changes(&self) -> Vec<String> {
        self.changes_but_for(&[])
    }

    /// What has changed since, but for these paths (relative to the directory), what is below them, and when the directories
    /// that they are in were modified.
    #[must_use]
    pub fn changes_but_for(&self, exempt: &[&str]) -> Vec<String> {
        let now = Self::of(&self.directory);
        let exempt: Vec<PathBuf> = exempt.iter().map(|path| self.directory.join(path)).collect();
        let mut paths: Vec<&PathBuf> = self.entries.keys().chain(now.entries.keys()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut changes = Vec::new();
        for path in paths {
            if exempt.iter().any(|exempt| path.starts_with(exempt)) {
                continue;
            }
            let holds_exempt = exempt.iter().any(|exempt| exempt.parent() == Some(path));
            let what = match (self.entries.get(path), now.entries.get(path)) {
                (Some(before), Some(after)) => before.difference(after, holds_exempt),
                (Some(_), None) => Some("is gone"),
                (None, Some(_)) => Some("is new"),
                (None, None) => None,
            };
            changes.extend(what.map(|what| format!("{}: {what}", path.display())));
        }
        changes
    }
}

impl Entry {
    fn difference(&self, after: &Self, may_be_modified: bool) -> Option<&'static str> {
        if self.content != after.content {
            Some("has another content")
        } else if self.mode != after.mode {
            Some("has another mode")
        } else if self.owner != after.owner {
            Some("has another owner")
        } else if self.inode != after.inode {
            Some("was replaced")
        } else if self.modified != after.modified && !may_be_modified {
            Some("was modified")
        } else {
            None
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.entries.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn every_kind_of_change_is_seen() {
        type Change = fn(&Path);
        let table: [(&str, Change, &[&str]); 7] = [
            ("nothing", |_| {}, &[]),
            ("content", |path| fs::write(path.join("a/file"), "other").unwrap(), &["a/file: has another content"]),
            (
                "mode",
                |path| fs::set_permissions(path.join("a/file"), fs::Permissions::from_mode(0o640)).unwrap(),
                &["a/file: has another mode"],
            ),
            ("new", |path| fs::write(path.join("b"), "").unwrap(), &["/b: is new", "was modified"]),
            ("gone", |path| fs::remove_file(path.join("a/file")).unwrap(), &["a/file: is gone", "a: was modified"]),
            (
                "replaced",
                |path| {
                    fs::write(path.join("a/new"), "text").unwrap();
                    fs::set_permissions(path.join("a/new"), fs::Permissions::from_mode(0o600)).unwrap();
                    fs::rename(path.join("a/new"), path.join("a/file")).unwrap();
                },
                &["a/file: was replaced", "a: was modified"],
            ),
            (
                "came and went",
                |path| {
                    fs::write(path.join("a/new"), "").unwrap();
                    fs::remove_file(path.join("a/new")).unwrap();
                },
                &["a: was modified"],
            ),
        ];
        for (name, change, expected) in table {
            let directory = Scratch::new();
            fs::create_dir(directory.path().join("a")).unwrap();
            fs::write(directory.path().join("a/file"), "text").unwrap();
            fs::set_permissions(directory.path().join("a/file"), fs::Permissions::from_mode(0o600)).unwrap();
            let snapshot = Snapshot::of(directory.path());
            change(directory.path());
            let changes = snapshot.changes();
            assert_eq!(changes.len(), expected.len(), "{name}: {changes:?}");
            for part in expected {
                assert!(changes.iter().any(|change| change.contains(part)), "{name}: {part:?} in {changes:?}");
            }
            assert_eq!(snapshot.changes_but_for(&["a", "b"]), Vec::<String>::new(), "{name}");
        }
    }
}
