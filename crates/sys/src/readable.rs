//! Files that become readable, such as terminals and `/dev/kmsg`.

use std::fs::File;
use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers an open file with the runtime that this is called in: it can be waited for until there is something to read. The
/// file must be one that the system can wait for, and must not block.
///
/// # Errors
///
/// What the system says, for an ordinary file for example.
///
/// # Panics
///
/// Outside of a tokio runtime with I/O.
pub fn watch_readable(file: File) -> io::Result<AsyncFd<File>> {
    // SAFETY: a `File` owns one descriptor, which it always returns and closes only when it is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}
