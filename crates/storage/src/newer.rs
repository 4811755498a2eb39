//! [`NewerFile`]: what tells a build that a newer one has used this root before.

use std::path::PathBuf;

use zeroize::Zeroizing;

use crate::disk::{Disk, read_if_present};
use crate::envelope::{DecodeError, Format};
use crate::path::DiskPath;

/// A whole file in a version of its format that this build does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file {} has version {found} of its format, and this build knows version {known}: it was written by a newer Polis, \
     and nothing was changed; run that version or a newer one",
    path.display()
)]
pub struct NewerFile {
    /// Full path of the file.
    pub path: PathBuf,
    /// Version of the file.
    pub found: u32,
    /// Version that this build knows.
    pub known: u32,
}

impl NewerFile {
    /// Whether the file at `path` is one. A file that is damaged or cannot be read is the business of whoever reads it to act on it.
    pub(crate) fn look(disk: &dyn Disk, path: &DiskPath, format: &Format) -> Option<Self> {
        let bytes = Zeroizing::new(read_if_present(disk, path, format.file_limit()).ok()??);
        match format.decode(&bytes) {
            Err(DecodeError::FutureVersion { found, known }) => Some(Self { path: disk.full_path(path), found, known }),
            Err(DecodeError::NotThisFormat { .. } | DecodeError::Damaged { .. }) | Ok(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::disk::FILE_MODE;
    use crate::layout::Layout;
    use crate::simulation::SimulatedDisk;

    /// All files with an envelope, each with its magic.
    const FILES: [(&str, &[u8; 8]); 22] = [
        ("esp/polis/journal.0", b"POLISJNL"),
        ("esp/polis/journal.1", b"POLISJNL"),
        ("esp/polis/directory.0", b"POLISDIR"),
        ("esp/polis/directory.1", b"POLISDIR"),
        ("esp/polis/peers.0", b"POLISPRS"),
        ("esp/polis/peers.1", b"POLISPRS"),
        ("esp/polis/members.0", b"POLISMEM"),
        ("esp/polis/members.1", b"POLISMEM"),
        ("esp/polis/unlock.0", b"POLISULK"),
        ("esp/polis/unlock.1", b"POLISULK"),
        ("esp/polis/recovery.0", b"POLISRCV"),
        ("esp/polis/recovery.1", b"POLISRCV"),
        ("esp/polis/announced.0", b"POLISANN"),
        ("esp/polis/announced.1", b"POLISANN"),
        ("encrypted/partition", b"POLISDAT"),
        ("data/partition", b"POLISDAT"),
        ("data/etcd/credentials", b"POLISPEE"),
        ("data/etcd/joining", b"POLISJNG"),
        ("data/node/credentials", b"POLISCRD"),
        ("data/node/roles.0", b"POLISROL"),
        ("data/node/roles.1", b"POLISROL"),
        ("data/node/revocations.1", b"POLISREV"),
    ];

    fn layout_with(path: &str, bytes: &[u8]) -> (Arc<SimulatedDisk>, Layout) {
        let disk = Arc::new(SimulatedDisk::default());
        let layout = Layout::new(disk.clone());
        layout.prepare_lasting().unwrap();
        for directory in [
            &layout.encrypted.directory,
            &layout.data.directory,
            &layout.data.etcd.directory,
            &layout.data.node.directory,
        ] {
            directory.create("test").unwrap();
        }
        disk.create_exclusive(&DiskPath::parse(path).unwrap(), FILE_MODE, bytes).unwrap();
        (disk, layout)
    }

    #[test]
    fn a_newer_file_is_found_wherever_it_is_and_nothing_is_changed() {
        for (path, magic) in FILES {
            let newer = Format { magic: *magic, version: 2, payload_limit: 64 };
            let (disk, layout) = layout_with(path, &newer.encode(0, 3, b"unknown").unwrap());
            let before = disk.image();
            let expected = NewerFile { path: disk.full_path(&DiskPath::parse(path).unwrap()), found: 2, known: 1 };
            assert_eq!(layout.newer_file(), Some(expected), "{path}");
            assert!(disk.image() == before);
        }
    }

    #[test]
    fn a_file_of_this_version_and_a_damaged_one_are_not_newer() {
        for (path, magic) in FILES {
            let now = Format { magic: *magic, version: 1, payload_limit: 64 }.encode(0, 3, b"x").unwrap();
            let newer = Format { magic: *magic, version: 2, payload_limit: 64 }.encode(0, 3, b"x").unwrap();
            for bytes in [&now[..], &newer[..newer.len() - 1], &b""[..]] {
                assert_eq!(layout_with(path, bytes).1.newer_file(), None, "{path}");
            }
        }
    }
}
