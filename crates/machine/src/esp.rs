//! The EFI system partition, mounted.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::mounts::{make_directory, options_text};

/// Where the EFI system partition is mounted.
pub const ESP: &str = "/esp";

/// Root of the node of a machine: the partition is mounted at its place in the layout of a node.
pub(crate) const ROOT: &str = "/";

/// Name of the condition that the EFI system partition can only be read.
pub const ESP_READ_ONLY: &str = "esp-read-only";

/// Nothing on it is a device or is run. Without `sync`: what must last is flushed by whoever writes it, file and directory, and
/// with `sync` each changed sector would go out alone, which wears out flash and makes many more moments at which a power cut
/// leaves a file system half changed.
const FLAGS: MountFlags =
    MountFlags::NODEV.union(MountFlags::NOEXEC).union(MountFlags::NOSUID).union(MountFlags::NOATIME);

/// FAT knows no owners: all is for us alone. Names are kept as they are written. An error of the file system makes it read only,
/// so that it gets no worse.
const OPTIONS: &str = "fmask=0177,dmask=0077,codepage=437,iocharset=ascii,shortname=mixed,errors=remount-ro";

/// How the EFI system partition is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EspState {
    /// Mounted at [`ESP`].
    Mounted {
        /// The partition.
        device: PathBuf,
    },
    /// Mounted at [`ESP`], and cannot be written to.
    ReadOnly {
        /// The partition.
        device: PathBuf,
        /// What the system said about writing.
        reason: String,
    },
    /// There is none, because the machine runs without disks (`polis.volatile`).
    Volatile,
}

/// Mounts the partition at [`ESP`], to be read only if it cannot be written to.
pub(crate) fn mount_esp(device: &Path) -> io::Result<EspState> {
    make_directory(Path::new(ESP))?;
    let device = device.to_owned();
    let options = options_text(OPTIONS);
    match mount(&device, ESP, "vfat", FLAGS, options.as_deref()) {
        Ok(()) => Ok(EspState::Mounted { device }),
        Err(error @ (Errno::ROFS | Errno::ACCESS)) => {
            mount(&device, ESP, "vfat", FLAGS | MountFlags::RDONLY, options.as_deref())?;
            Ok(EspState::ReadOnly { device, reason: io::Error::from(error).to_string() })
        }
        Err(Errno::NODEV) => Err(io::Error::other(
            "this kernel cannot read FAT: the modules fat, vfat and those for its \
             character sets are missing in the image",
        )),
        Err(error) => Err(error.into()),
    }
}
