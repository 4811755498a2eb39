//! What there is where an unfinished format is, or where nothing should be yet: whatever no format of ours has made is
//! somebody else's.

use polis_storage::data::DataError;
use polis_storage::{Directory, DiskPath, Metadata, durable};

use super::core::Core;
use super::slots::is_work_file;

/// Directories that a format makes in the ciphertext: `etcd`, `etcd/data` and `node`.
const FORMATTED_DIRECTORIES: usize = 3;
/// Files that a format makes in the ciphertext: the marker and its temporary.
const FORMATTED_FILES: usize = 2;
/// Longest file that a format makes in the ciphertext: a marker of some 100 bytes, with room for longer names.
const FORMATTED_LENGTH: u64 = 8192;

impl Core {
    /// The first thing where an unfinished format is, or nothing yet, that no format of ours has made.
    pub(super) fn foreign(&self) -> Result<Option<DiskPath>, DataError> {
        let encrypted = &self.layout.encrypted;
        for (path, metadata) in self.content(&encrypted.directory)? {
            let slot = encrypted.slots.iter().any(|slot| *slot.path() == path);
            let directory = [&encrypted.cipher, &encrypted.work].iter().any(|directory| *directory.path() == path);
            let known = match metadata {
                Metadata::File { .. } => slot || path.name().is_some_and(durable::is_temporary),
                Metadata::Directory { .. } => directory,
                Metadata::Other => false,
            };
            if !known {
                return Ok(Some(path));
            }
        }
        for (path, metadata) in self.content(&encrypted.work)? {
            let known = path.name().is_some_and(is_work_file) && matches!(metadata, Metadata::File { .. });
            if !known {
                return Ok(Some(path));
            }
        }
        let mut bare = Bare { directories: FORMATTED_DIRECTORIES, files: FORMATTED_FILES };
        if let Some(path) = self.not_bare(encrypted.cipher.path(), &mut bare)? {
            return Ok(Some(path));
        }
        self.foreign_at_mount_point()
    }

    /// The first thing in the ciphertext that is more than a format makes.
    fn not_bare(&self, directory: &DiskPath, bare: &mut Bare) -> Result<Option<DiskPath>, DataError> {
        for (path, metadata) in self.content_of(directory)? {
            let is_known = match metadata {
                Metadata::File { length, .. } => length <= FORMATTED_LENGTH && take(&mut bare.files),
                Metadata::Directory { .. } => take(&mut bare.directories),
                Metadata::Other => false,
            };
            if !is_known {
                return Ok(Some(path));
            }
            if matches!(metadata, Metadata::Directory { .. })
                && let Some(found) = self.not_bare(&path, bare)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first thing in the directory that is to be mounted over, or the path itself if it is no directory.
    pub(super) fn foreign_at_mount_point(&self) -> Result<Option<DiskPath>, DataError> {
        let directory = &self.layout.data.directory;
        match self.disk.metadata(directory.path())? {
            None => Ok(None),
            Some(Metadata::Directory { .. }) => Ok(self.content(directory)?.into_iter().next().map(|(path, _)| path)),
            Some(Metadata::File { .. } | Metadata::Other) => Ok(Some(directory.path().clone())),
        }
    }

    fn content(&self, directory: &Directory) -> Result<Vec<(DiskPath, Metadata)>, DataError> {
        self.content_of(directory.path())
    }

    /// What is in a directory; nothing if it is absent.
    fn content_of(&self, directory: &DiskPath) -> Result<Vec<(DiskPath, Metadata)>, DataError> {
        let names = match self.disk.list(directory) {
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            names => names?,
        };
        let mut content = Vec::new();
        for name in names {
            // A name that is too long for one of ours is in the directory, and that is all that matters here.
            let path = directory.child(&name).unwrap_or_else(|_| directory.clone());
            if let Some(metadata) = self.disk.metadata(&path)? {
                content.push((path, metadata));
            }
        }
        Ok(content)
    }
}

/// How much more there may be in the ciphertext of an unfinished format.
struct Bare {
    directories: usize,
    files: usize,
}

fn take(left: &mut usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}
