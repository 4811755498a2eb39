//! [`GocryptfsData`]: the data partition as encrypted files below the node's root, mounted by gocryptfs.
//!
//! | below the root | what it is |
//! |---|---|
//! | `encrypted/cipher` | the ciphertext, names too |
//! | `encrypted/slot.0`, `.1` | configuration files: the master key, each time encrypted under one key ([`crate::derive()`]) |
//! | `encrypted/partition` | whose it is; written last, so that a format that was cut off is known as one |
//! | `encrypted/work` | scratch |
//! | `data` | where it is mounted; an empty directory otherwise |
//!
//! gocryptfs runs in the foreground as a child process. When it dies, [`DataPartition::lost`] says so, and opening it again cures
//! it.
//!
//! # When the node is killed
//!
//! A block of 4 KiB is 4128 bytes of ciphertext, which lie in two pages, and a write that SIGKILL interrupts ends between two pages:
//! of the block a part is new then, and nothing in it can be read any more, also what had been synced before. So gocryptfs is not
//! killed with its node. What it has begun to write it finishes, and it unmounts and ends by itself (`-idle`) as soon as nobody has
//! used its mount for a second. The node uses the mount as long as it lives, by holding it and a file in it open; etcd dies with the
//! node.
//!
//! Whoever comes next does not wait for that: the next [`DataPartition::prepare`] cuts what is left off from its process, if it is of
//! our ciphertext at our place, which lets that finish its writes as well; it unmounts it and waits until the process has ended. No gocryptfs is started while another one may be there
//! (the module `claim`); what does not end is an error that says so.
//!
//! Whoever sends SIGKILL to gocryptfs itself can tear a block: nothing can prevent that. The kernel does not do so when
//! memory runs out, if the node may ask for that.
//!
//! # What is durable
//!
//! gocryptfs passes on each sync of a file and, since version 2.1, of a directory to where it keeps them, writes at once
//! what is written, and reserves room before it writes; a lock is the kernel's, and a mapped file sees what is written to
//! it. So what is durable on a plain directory is durable here, with one difference: a block of 4 KiB is written as a whole,
//! under a new nonce, even if only its end is new. Where the *power* fails during the write, the block may be torn, and then nothing in it can be read any more, also
//! what had been synced before. What is written once and renamed, as all of the node's own files are, is not touched by
//! that; the end of etcd's log is. It is an error then, never wrong data, and such a member has to be replaced.
//!
//! gocryptfs keeps no random value per directory here (`-deterministic-names`): it would not sync it.

mod claim;
mod core;
mod look;
mod mounted;
mod mounting;
mod place;
mod slots;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use polis_secret::Secret32;
use polis_storage::data::{DataError, Description, Found, ProgressSender, UnlockKeys, blocking, report};
use polis_storage::journal::{FormatPermit, StorageSecurity};
use polis_storage::{DataGate, DataPartition, DataUnavailable, Disk};
use tokio::sync::watch;
use zeroize::Zeroizing;

use self::core::Core;
use self::tools::{SEARCH, Tools};
use crate::child::ToolError;
use crate::derive::{Purpose, derive};

/// Name of this backend, as in the partition's marker.
const BACKEND: &str = "gocryptfs";

/// The data partition as encrypted and authenticated files.
#[derive(Clone)]
pub struct GocryptfsData {
    core: Arc<Core>,
    lost: watch::Receiver<Option<String>>,
}

impl GocryptfsData {
    /// The partition with its ciphertext in `encrypted` and its mount at `data` on this disk, which must be one of the
    /// host and not guarded. The gate is open while the partition is.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, gate: DataGate) -> Self {
        Self::with_programs(disk, gate, SEARCH.into_iter().map(PathBuf::from).collect())
    }

    /// As [`GocryptfsData::new`], with programs that are looked for in these directories.
    #[must_use]
    pub fn with_programs(disk: Arc<dyn Disk>, gate: DataGate, search: Vec<PathBuf>) -> Self {
        let (sender, lost) = watch::channel(None);
        Self { core: Arc::new(Core::new(disk, gate, Tools::new(search), sender)), lost }
    }

    /// Whether this host has what it takes. Starts no process; the version of gocryptfs is looked at when it is used.
    ///
    /// # Errors
    ///
    /// What is missing, and what would install it.
    pub fn available(&self) -> Result<(), DataUnavailable> {
        self.core.tools.look()
    }

    /// Clears the mount that a killed process has left at the place of this partition, and touches nothing else: for whoever
    /// works on the files of a node that does not run. Blocks.
    ///
    /// # Errors
    ///
    /// When something else is mounted there, or the mount does not go.
    pub fn clear_left_mount(&self) -> Result<(), DataError> {
        self.core.clear_left_mount()
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<T, DataError> + Send + 'static,
    ) -> Result<T, DataError> {
        let core = Arc::clone(&self.core);
        blocking(&self.core.path(), move || work(&core)).await
    }
}

#[async_trait]
impl DataPartition for GocryptfsData {
    fn describe(&self) -> Description {
        Description {
            backend: BACKEND,
            storage_security: StorageSecurity::AuthenticatedEncrypted,
            warning: Some(
                "gocryptfs encrypts and authenticates files block by block: whoever can write to this disk cannot read or forge \
                 data, but sees sizes and times, and can cut a file short or put back an older version of it; and a power cut \
                 during a write may make the 4 KiB around it unreadable, so a member that is alone should not rely on it where \
                 the power may fail",
            ),
        }
    }

    async fn prepare(&self, progress: &ProgressSender) -> Result<Found, DataError> {
        report(progress, "looking at the encrypted data directory");
        self.blocking(Core::prepare).await
    }

    async fn format(
        &self,
        _permit: FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        report(progress, "formatting the encrypted data directory");
        let (owner, key) = (owner.to_owned(), self.core.key(keys)?);
        self.blocking(move |core| core.format(&owner, &key)).await
    }

    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError> {
        report(progress, "opening the encrypted data directory");
        let (owner, key) = (owner.to_owned(), self.core.key(keys)?);
        self.blocking(move |core| core.open(&owner, &key)).await
    }

    async fn test_open(&self, keys: &UnlockKeys) -> Result<bool, DataError> {
        let key = derive(keys, Purpose::Gocryptfs);
        self.blocking(move |core| core.with_slots(|slots| Ok(slots.opened_by(&key)?.is_some()))).await
    }

    async fn add_key(&self, existing: &UnlockKeys, new: &UnlockKeys) -> Result<(), DataError> {
        let (existing, new) = (derive(existing, Purpose::Gocryptfs), derive(new, Purpose::Gocryptfs));
        self.blocking(move |core| core.with_slots(|slots| slots.add(&existing, &new))).await
    }

    async fn count_keys(&self) -> Result<usize, DataError> {
        self.blocking(|core| core.with_slots(|slots| Ok(slots.present()?.len()))).await
    }

    async fn remove_others(&self, remaining: &UnlockKeys) -> Result<(), DataError> {
        let remaining = derive(remaining, Purpose::Gocryptfs);
        self.blocking(move |core| core.with_slots(|slots| slots.remove_others(&remaining))).await
    }

    async fn lost(&self) -> String {
        let mut lost = self.lost.clone();
        let reason = match lost.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            // The sender lives as long as this value.
            Err(_) => None,
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    async fn close(&self) -> Result<(), DataError> {
        self.blocking(Core::close).await
    }
}

/// Keys as gocryptfs reads them: one line each, in hexadecimal digits.
fn lines(keys: &[&Secret32]) -> Zeroizing<Vec<u8>> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // Of the right size from the start: a buffer that grows leaves copies behind.
    let mut lines = Zeroizing::new(Vec::with_capacity(keys.len() * 65));
    for key in keys {
        for byte in key.expose() {
            lines.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        lines.push(b'\n');
    }
    lines
}

fn tool_failed(action: &'static str, path: &Path, error: ToolError) -> DataError {
    DataError::Tool { action, path: path.to_owned(), backend: BACKEND, source: error.into() }
}

fn unavailable(path: &Path, source: DataUnavailable) -> DataError {
    DataError::Unavailable { path: path.to_owned(), backend: BACKEND, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines_of_digits() {
        let lines = lines(&[&Secret32::new([0x0a; 32]), &Secret32::new([0xf1; 32])]);
        assert_eq!(*lines, format!("{}\n{}\n", "0a".repeat(32), "f1".repeat(32)).into_bytes());
    }
}
