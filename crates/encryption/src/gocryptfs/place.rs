//! [`Place`]: where everything of one partition is, as child processes and the kernel know it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use polis_storage::{Action, DiskError, Layout, PlainFile};

/// Absolute paths, without symbolic links: mounts are listed so.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// `data`
    pub(super) mount_point: PathBuf,
    /// `encrypted`
    pub(super) encrypted: PathBuf,
    /// `encrypted/cipher`
    pub(super) cipher: PathBuf,
    /// `encrypted/work`
    pub(super) work: PathBuf,
    root: PathBuf,
}

impl Place {
    /// Finds out where the root of this layout is.
    pub(super) fn find(layout: &Layout) -> Result<Self, DiskError> {
        let root = layout.directory.full_path();
        let root =
            std::fs::canonicalize(&root).map_err(|source| DiskError { action: Action::Examine, path: root, source })?;
        Ok(Self {
            mount_point: layout.data.directory.path().under(&root),
            encrypted: layout.encrypted.directory.path().under(&root),
            cipher: layout.encrypted.cipher.path().under(&root),
            work: layout.encrypted.work.path().under(&root),
            root,
        })
    }

    /// The full path of a slot.
    pub(super) fn slot(&self, slot: &PlainFile) -> PathBuf {
        slot.path().under(&self.root)
    }

    /// What is said to be mounted: the path of the ciphertext, in characters that mean nothing to anybody on the way.
    pub(super) fn source_name(&self) -> OsString {
        let bytes = self.cipher.as_os_str().as_bytes().iter();
        let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
        OsString::from_vec(bytes.map(|byte| if harmless(byte) { *byte } else { b'_' }).collect())
    }
}
