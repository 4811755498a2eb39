//! [`LuksData`]: the data partition as a file system on a device: a partition, a whole disk, or an image file.
//!
//! | protection | stack | backend |
//! |---|---|---|
//! | insecure | XFS | `xfs` |
//! | encrypted | XFS on LUKS2, `aes-xts-plain64` with a key of 512 bits | `luks` |
//! | authenticated and encrypted | XFS on LUKS2, `aes-gcm` with random nonces over dm-integrity | `luks-authenticated` |
//!
//! Sectors are 4096 bytes. The work is done by `cryptsetup` and `mkfs.xfs` as child processes, which get keys through a pipe. The
//! key of a slot is random ([`crate::derive()`]), so its derivation function is a cheap one: PBKDF2 with few iterations. Nobody
//! guesses 256 bits, however fast a guess is.
//!
//! # Whose it is
//!
//! The LUKS header has the label `polis-data`, the node's id as its subsystem, and a UUID that is made from the node's id; so has the
//! XFS of the insecure stack. A token in the LUKS header, or the label of the XFS, says that the format was finished; it is written
//! last. Between the first and the last step the device is in nobody's format, and `cryptsetup` may have filled it with random bytes
//! when the power fails; so before the first step a *marker* with the node's id is written near the end of the device
//! (module `marker`), and erased when the header says whose it is. A device is
//!
//! - *blank* when its first and last mebibytes are zeroes, which is more than that no signature is found;
//! - *ours, half formatted*, when it has the marker, or a header without the token: formatting starts again from the beginning, as
//!   nothing of value was on it;
//! - *ours, formatted*;
//! - *foreign* otherwise, and then it is never written to, and the message says what is on it.
//!
//! A header that is destroyed makes a device blank or foreign. The journal says that it was formatted, and without its permit nothing
//! formats. LUKS2 keeps two copies of its header, of which `cryptsetup` repairs one from the other, but only one of the key slots.
//! No further copy is kept here: it would have the slots of its time, so that a key which was removed would still open it. What is lost
//! with a disk, the other members of the cluster have.
//!
//! # Sectors that were never written
//!
//! With authentication, a sector that was never written has no valid tag, and reading it fails (`EILSEQ`). `cryptsetup` avoids that by
//! writing the whole device first, which takes as long as it sounds. `mkfs.xfs` writes what it needs, the whole log too, and XFS does
//! not read a block that it has not written. With one exception: when it *recovers* after a power cut, it reads each metadata block
//! that it finds in the log, to see whether that is newer, and of a block that was just allocated the log may be all there is. Then
//! that read fails, and with it the recovery and the mount. So a file system may only ever cover sectors that were written. Here, it
//! starts with a small part of the device, `extent::FIRST`, which is written with zeroes before; the rest is written while the
//! node runs, and the file system grows over it, step by step (module `extent`). `mkfs.xfs -K` and the absence of `allow-discards` keep
//! sectors from becoming unreadable again.
//!
//! # A device that grows
//!
//! The file system grows over what there is of the device when it is opened. An authenticated volume has a size of its own, which
//! follows that of the device when it is opened the second time after that has grown; so it is opened twice then (module `integrity`).
//!
//! # What it does not tell
//!
//! Authentication is per sector: it tells that a sector was changed, and not that the whole disk, or one sector, was put back to an
//! earlier state of itself.

mod backends;
mod commands;
mod core;
mod extent;
mod header;
mod integrity;
mod look;
mod marker;
mod names;
mod problem;
mod stack;
mod tools;
mod xfs;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use polis_storage::data::{DataError, Description, Found, ProgressSender, UnlockKeys, blocking};
use polis_storage::journal::{FormatPermit, StorageSecurity};
use polis_storage::{DataGate, DataPartition, DataUnavailable, Disk};

pub use self::backends::DeviceBackends;
use self::core::Core;
use self::tools::{SEARCH, Tools};

/// The data partition as a file system on a device.
#[derive(Clone)]
pub struct LuksData {
    core: Arc<Core>,
}

impl LuksData {
    /// The partition on `device`, mounted at `data` on this disk, which must be one of the host and not guarded. The gate is open
    /// while the partition is.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, gate: DataGate, device: PathBuf, security: StorageSecurity) -> Self {
        let tools = Tools::new(SEARCH.into_iter().map(PathBuf::from).collect());
        Self { core: Arc::new(Core::new(disk, gate, device, security, tools)) }
    }

    /// Whether this host has what it takes.
    ///
    /// # Errors
    ///
    /// What is missing, and what would help.
    pub fn available(&self) -> Result<(), DataUnavailable> {
        self.core.available()
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<T, DataError> + Send + 'static,
    ) -> Result<T, DataError> {
        let core = Arc::clone(&self.core);
        blocking(&self.core.device, move || work(&core)).await
    }
}

#[async_trait]
impl DataPartition for LuksData {
    fn describe(&self) -> Description {
        self.core.describe()
    }

    async fn prepare(&self, progress: &ProgressSender) -> Result<Found, DataError> {
        let progress = progress.clone();
        self.blocking(move |core| core.prepare(&progress)).await
    }

    async fn format(
        &self,
        permit: FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        let (owner, keys, progress) = (owner.to_owned(), keys.cloned(), progress.clone());
        self.blocking(move |core| core.format(&permit, &owner, keys.as_ref(), &progress)).await
    }

    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError> {
        let (owner, keys, progress) = (owner.to_owned(), keys.cloned(), progress.clone());
        self.blocking(move |core| core.open(&owner, keys.as_ref(), &progress)).await
    }

    async fn test_open(&self, keys: &UnlockKeys) -> Result<bool, DataError> {
        let keys = keys.clone();
        self.blocking(move |core| core.test_open(&keys)).await
    }

    async fn add_key(&self, existing: &UnlockKeys, new: &UnlockKeys) -> Result<(), DataError> {
        let (existing, new) = (existing.clone(), new.clone());
        self.blocking(move |core| core.add_key(&existing, &new)).await
    }

    async fn count_keys(&self) -> Result<usize, DataError> {
        self.blocking(Core::count_keys).await
    }

    async fn remove_others(&self, remaining: &UnlockKeys) -> Result<(), DataError> {
        let remaining = remaining.clone();
        self.blocking(move |core| core.remove_others(&remaining)).await
    }

    async fn lost(&self) -> String {
        self.core.lost().await
    }

    async fn close(&self) -> Result<(), DataError> {
        self.blocking(Core::close).await
    }
}
