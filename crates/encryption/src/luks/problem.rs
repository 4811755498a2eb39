//! [`Problem`]: what can be wrong with a device, beside what its tools say.

use std::path::PathBuf;

use polis_disks::{Usage, UsageError};

/// Why a device cannot be used. It is the cause in a [`polis_storage::data::DataError::Tool`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// Somebody else uses it.
    #[error(
        "the device {} is in use: {}; nothing was changed: stop that first, or name another device",
        device.display(),
        listed(uses)
    )]
    InUse { device: PathBuf, uses: Vec<Usage> },
    /// It is a partition that is meant for something else.
    #[error(
        "the partition {} is of the type {kind}, and is not for data; nothing was changed: name another device, or give the partition \
         the type {}",
        device.display(),
        polis_disks::DATA_TYPE
    )]
    OtherKind { device: PathBuf, kind: String },
    /// It is too small.
    #[error("the device {} has {size} bytes, and a data partition needs {least}: name a larger one", device.display())]
    TooSmall { device: PathBuf, size: u64, least: u64 },
    /// Something else is mounted where the data belong.
    #[error(
        "at {} something else is mounted: {kind} from {source_name}; unmount it, or give the node another root",
        at.display()
    )]
    ForeignMount { at: PathBuf, kind: String, source_name: String },
    /// There are files where the partition is to be mounted.
    #[error("{} is not empty, and the data partition is to be mounted there: move away what is in it", at.display())]
    MountPointInUse { at: PathBuf },
    /// The kernel refuses to mount or unmount.
    #[error("the kernel refuses at {}", at.display())]
    Kernel {
        at: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A mount does not go away.
    #[error("{} stays mounted: find who uses it with `fuser -vm {}`, and end that", at.display(), at.display())]
    Busy { at: PathBuf },
    /// The kernel does not say who uses it.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

fn listed(uses: &[Usage]) -> String {
    uses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
