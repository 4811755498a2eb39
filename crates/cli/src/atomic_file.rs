//! Files that are there whole or not at all.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Start and end of the names of files that are being written.
const PREFIX: &str = ".polis-";
const SUFFIX: &str = ".new";

/// What happens when the file is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It is replaced in one step.
    Replace,
    /// It stays, and the write fails with `AlreadyExists`.
    Keep,
}

/// A file that is being written, and has no name yet. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: NamedTempFile,
    directory: PathBuf,
    path: PathBuf,
    mode: u32,
}

impl NewFile {
    /// Begins a file that will be `path`, with `mode`.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(PREFIX)
            .suffix(SUFFIX)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)?;
        Ok(Self { file, directory: directory.to_owned(), path: path.to_owned(), mode })
    }

    /// Where what was written so far can be read.
    pub(crate) fn so_far(&self) -> io::Result<File> {
        self.file.reopen()
    }

    /// Gives it its name, durably: when this returns, the file survives a power cut; when it does not, `path` is as it was.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn finish(self, existing: Existing) -> io::Result<()> {
        // The mode at creation is subject to the umask of the caller; this one is not.
        self.file.as_file().set_permissions(Permissions::from_mode(self.mode))?;
        self.file.as_file().sync_all()?;
        persist(self.file, &self.path, existing)?;
        File::open(&self.directory)?.sync_all()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `bytes` to `path` with `mode`, durably: when this returns, the file survives a power cut; when it does not, `path`
/// is as it was.
///
/// # Errors
///
/// When the system refuses.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> io::Result<()> {
    let mut file = NewFile::begin(path, mode)?;
    file.write_all(bytes)?;
    file.finish(existing)
}

/// Whether a file of this name was left by a write that was interrupted.
pub(crate) fn is_leftover(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
}

fn persist(file: NamedTempFile, path: &Path, existing: Existing) -> io::Result<()> {
    match existing {
        Existing::Replace => file.persist(path)?,
        Existing::Keep => file.persist_noclobber(path)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_mode_is_exact_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write(&path, b"one", 0o644, Existing::Keep).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        let error = write(&path, b"two", 0o600, Existing::Keep).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write(&path, b"three", 0o600, Existing::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
