//! The room that etcd needs on its disk before it is started again after that was full.
//!
//! An etcd that finds no room for its log ends, as it can promise nothing any more. Started again at once it would only end again,
//! so its start waits for room, and says for how much.

use std::path::Path;

use crate::consensus::Inner;
use crate::fault::Room;
use crate::log_line::NO_SPACE;

/// Bytes that must be free: the next segment of etcd's log, 64 MB, which it claims at its start, and the 16 MiB by which its
/// database grows.
const NEEDED: u64 = 64_000_000 + (16 << 20);

/// The room that is missing for the next start; `None` when there is enough, or the last run had no complaint about it. What cannot
/// be found out holds up nothing: then etcd itself finds out. Blocks for a moment.
pub(crate) fn missing(inner: &Inner) -> Option<Room> {
    let complains = inner.complaints().iter().any(|complaint| complaint.contains(NO_SPACE));
    let free = if complains { free(&inner.data_path)? } else { return None };
    (free < NEEDED).then_some(Room { free, needed: NEEDED })
}

fn free(path: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(path).ok()?;
    space.f_bavail.checked_mul(space.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_that_of_the_file_system() {
        assert!(free(Path::new("/proc/self")).is_some_and(|free| free < NEEDED));
        assert!(free(&std::env::temp_dir()).is_some_and(|free| free > 0));
        assert_eq!(free(Path::new("/no/such/directory")), None);
    }
}
