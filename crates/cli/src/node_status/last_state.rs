//! The last state that a node wrote down.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use polis_control::{LAST_STATE_FILE, LastState, MAX_LINE_LENGTH, Status};
use serde::Deserialize;

use crate::bounded_file;

/// Why `last_state.json` says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadLastStateError {
    #[error("{} could not be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is damaged, so the last state of the node is not known", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "{} has version {version} and was written by a later Polis; this one reads up to version {known}",
        path.display(), known = LastState::VERSION
    )]
    Future { path: PathBuf, version: u64 },
}

/// Reads the last state of the node at `root`; `None` when there is no such file. `running` is false in it.
///
/// # Errors
///
/// When the file cannot be read, is damaged or of a later version.
pub(crate) fn read_last_state(root: &Path) -> Result<Option<Status>, ReadLastStateError> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }

    let path = root.join(LAST_STATE_FILE);
    // What is longer than the longest status is cut and so does not parse.
    let limit = u64::try_from(MAX_LINE_LENGTH).unwrap_or(u64::MAX);
    let bytes = match bounded_file::read(&path, limit) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(ReadLastStateError::Read { path, source }),
    };
    // The version first: what stands beside it in a later one may look different.
    let version = match serde_json::from_slice(&bytes) {
        Ok(Version { version }) => version,
        Err(source) => return Err(ReadLastStateError::Damaged { path, source }),
    };
    if version > u64::from(LastState::VERSION) {
        return Err(ReadLastStateError::Future { path, version });
    }
    match serde_json::from_slice::<LastState>(&bytes) {
        Ok(last) => Ok(Some(Status { running: false, ..last.status })),
        Err(source) => Err(ReadLastStateError::Damaged { path, source }),
    }
}

/// Tells whether `last_state.json` was written since it was last looked at: every write makes a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastStateSeen(Option<(u64, i64, i64)>);

impl LastStateSeen {
    pub(crate) fn now(root: &Path) -> Self {
        let identity = |data: fs::Metadata| (data.ino(), data.mtime(), data.mtime_nsec());
        Self(fs::metadata(root.join(LAST_STATE_FILE)).ok().map(identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_can_hold() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LAST_STATE_FILE);
        assert!(read_last_state(root.path()).unwrap().is_none());

        let good = r#"{"version":1,"status":{"state":"Running","phase":"enrolled","roles":[],"conditions":[],"running":true}}"#;
        fs::write(&path, good).unwrap();
        let status = read_last_state(root.path()).unwrap().unwrap();
        assert!(!status.running, "a file does not run");

        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            let error = read_last_state(root.path()).unwrap_err();
            assert!(matches!(error, ReadLastStateError::Damaged { .. }), "{length}: {error}");
        }
        fs::write(&path, r#"{"version":2,"else":[]}"#).unwrap();
        let error = read_last_state(root.path()).unwrap_err().to_string();
        assert!(error.contains("has version 2 and was written by a later Polis"), "{error}");
    }

    #[test]
    fn a_write_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let before = LastStateSeen::now(root.path());
        fs::write(root.path().join(LAST_STATE_FILE), "").unwrap();
        let after = LastStateSeen::now(root.path());
        assert_ne!(before, after);
        assert_eq!(after, LastStateSeen::now(root.path()));
    }
}
