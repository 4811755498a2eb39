//! Reading small files of ours that may have been replaced by anything.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// The first `limit` bytes of a file.
///
/// # Errors
///
/// When the system does not give them, or it is a pipe: opening one waits for somebody who writes, perhaps for ever.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if metadata(path)?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe and no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
