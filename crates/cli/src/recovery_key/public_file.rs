//! The file with the public half of a recovery key.

use std::path::Path;

use polis_recovery::{PUBLIC_KEY_FILE_LIMIT, RecoveryPublicKey};

use crate::bounded_file;
use crate::failure::Failure;

/// Reads the public half in the file at `path`.
///
/// # Errors
///
/// When it cannot be read, or is no whole public half.
pub(crate) fn read(path: &Path) -> Result<RecoveryPublicKey, Failure> {
    let make = "make one with polis recovery-key create, or bring it back from a copy: it is no secret";
    // One byte more than there may be tells a longer file.
    let limit = u64::try_from(PUBLIC_KEY_FILE_LIMIT).unwrap_or(u64::MAX).saturating_add(1);
    let bytes = bounded_file::read(path, limit).map_err(|error| {
        Failure::usage(format!("the recovery key {} could not be read", path.display())).because(&error).hint(make)
    })?;
    RecoveryPublicKey::from_text(&String::from_utf8_lossy(&bytes)).map_err(|error| {
        Failure::failed(format!("{} is not the public half of a recovery key", path.display()))
            .because(&error)
            .hint(make)
    })
}
