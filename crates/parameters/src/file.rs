//! Reading a parameters file.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::MAX_PARAMETERS_SIZE;

/// The bytes of a parameters file, for [`Parameters::parse`](crate::Parameters::parse). Of a file that is too large, one
/// byte more than is allowed is read, which is enough for parsing to say so. Blocks.
///
/// # Errors
///
/// When the system does not give them, or it is a pipe: opening one waits for somebody who writes, perhaps for ever.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if metadata(path)?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe; parameters are read from a file"));
    }
    let limit = u64::try_from(MAX_PARAMETERS_SIZE).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
