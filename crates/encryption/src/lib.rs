//! Data partitions that are encrypted, behind the trait of [`polis_storage::DataPartition`].
//!
//! - [`GocryptfsData`] keeps ciphertext in files below the node's root: for a daemon on an ordinary host, without device
//!   mapper and without a spare disk. [`DirectoryBackends`] are the backends of such a host.
//! - [`LuksData`] keeps them on a device of its own, by LUKS2 and XFS: for a machine, or a host with a disk to spare.
//!   [`DeviceBackends`] are the backends of such a device.
//! - [`derive()`] makes the key that opens a backend from the two that a node has.
//!
//! What needs a privilege or a kernel interface is done by the programs that distributions maintain for it, as child
//! processes: `gocryptfs`, `fusermount3`, `cryptsetup` and `mkfs.xfs`. None outlives this process but the gocryptfs that
//! holds a mount, which ends by itself soon after it; and secrets reach
//! them through pipes only, never by arguments, environment or files.
//!
//! This crate knows nothing of clusters, and of the journal only that a permit to format comes from it.

#![forbid(unsafe_code)]

mod child;
mod derive;
mod directory;
mod gocryptfs;
pub mod luks;
mod mounts;

pub use child::ToolError;
pub use derive::{Purpose, derive};
pub use directory::DirectoryBackends;
pub use gocryptfs::GocryptfsData;
pub use luks::{DeviceBackends, LuksData};
