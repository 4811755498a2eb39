//! Files that are there whole or not at all.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

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

/// Writes `bytes` to `path` with `mode`, durably: when this returns, the file survives a power cut; when it does not, `path`
/// is as it was.
///
/// # Errors
///
/// When the system refuses.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(PREFIX)
        .suffix(SUFFIX)
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    // The mode at creation is subject to the umask of the caller; this one is not.
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    persist(file, path, existing)?;
    File::open(directory)?.sync_all()
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
