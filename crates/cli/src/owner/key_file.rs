//! The file with the owner key.

use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use polis_identity::{OwnerKey, ParseOwnerKeyError, PublicKey};
use zeroize::Zeroizing;

use crate::atomic_file::{self, Existing};

/// Largest key file that is read, in bytes: a key has some hundreds, and text may stand before it.
const MAX_SIZE: u64 = 64 * 1024;

/// Mode of the key file: for its owner only (metropolis.md J.7).
const MODE: u32 = 0o600;

/// Mode of a configuration directory that is made here: it holds private keys.
const DIRECTORY_MODE: u32 = 0o700;

/// What is known of an owner key in a file.
#[derive(Debug)]
pub(crate) struct CreatedKey {
    /// The public half.
    pub(crate) key: PublicKey,
    /// Made now, and not found.
    pub(crate) is_new: bool,
    /// The file's mode lets others read it.
    pub(crate) readable_by_others: bool,
}

/// Why there is no usable owner key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileError {
    #[error("there is no owner key at {}", path.display())]
    Missing { path: PathBuf },
    #[error("the owner key {} could not be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not an owner key", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: ParseOwnerKeyError,
    },
    #[error("the directory {} for the owner key could not be made", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the owner key {} could not be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Makes an owner key at `path`, with its directory, unless one is there.
///
/// # Errors
///
/// When the system refuses, or what is there is not an owner key; it is never replaced.
pub(crate) fn create_key(path: &Path) -> Result<CreatedKey, KeyFileError> {
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
        made.map_err(|source| KeyFileError::Directory { path: directory.to_owned(), source })?;
    }
    let existing = |key| {
        let mode = fs::metadata(path).map(|data| data.permissions().mode()).unwrap_or(MODE);
        CreatedKey { key, is_new: false, readable_by_others: mode & 0o077 != 0 }
    };
    match read_key(path) {
        Ok(key) => return Ok(existing(key)),
        Err(KeyFileError::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    let key = OwnerKey::generate();
    match atomic_file::write(path, key.to_owner_pem().as_bytes(), MODE, Existing::Keep) {
        Ok(()) => Ok(CreatedKey { key: key.public(), is_new: true, readable_by_others: false }),
        // Somebody else made one at the same time; theirs is the key.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(existing(read_key(path)?)),
        Err(source) => Err(KeyFileError::Write { path: path.to_owned(), source }),
    }
}

/// Reads the key at `path` and gives its public half.
///
/// # Errors
///
/// When there is none, or the file is not an owner key.
pub(crate) fn read_key(path: &Path) -> Result<PublicKey, KeyFileError> {
    Ok(read_owner_key(path)?.public())
}

/// Reads the key at `path`.
///
/// # Errors
///
/// When there is none, or the file is not an owner key.
pub(crate) fn read_owner_key(path: &Path) -> Result<OwnerKey, KeyFileError> {
    let read = || -> io::Result<_> {
        // Room for all of it, so that no copy of the key stays behind where the string grew.
        let mut text = Zeroizing::new(String::with_capacity(usize::try_from(MAX_SIZE).unwrap_or_default()));
        fs::File::open(path)?.take(MAX_SIZE).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(KeyFileError::Missing { path: path.to_owned() });
        }
        other => other.map_err(|source| KeyFileError::Read { path: path.to_owned(), source })?,
    };
    OwnerKey::from_pem(&text).map_err(|source| KeyFileError::Damaged { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/owner-key.pem");
        let first = create_key(&path).unwrap();
        assert!(first.is_new);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o700);
        let bytes = fs::read(&path).unwrap();

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let second = create_key(&path).unwrap();
        assert!(!second.is_new && second.readable_by_others);
        assert_eq!(second.key, first.key);
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_damaged_key_is_left_alone_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner-key.pem");
        create_key(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let cut = &whole[..whole.len() / 2];
        for content in [&b""[..], b"\xff\xfe", cut] {
            fs::write(&path, content).unwrap();
            let error = create_key(&path).unwrap_err();
            assert!(matches!(error, KeyFileError::Damaged { .. } | KeyFileError::Read { .. }), "{error}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
    }
}
