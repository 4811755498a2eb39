//! [`BootDisk`]: the disk that this machine was booted from.
//!
//! The boot loader says by an EFI variable which partition it was started from. Only the disk with that partition is ours: another
//! disk in the machine may have the same types of partitions, with somebody else's data (metropolis.md C.4). The kernel's names of
//! partitions do not tell their GUIDs, so the tables are read here.

use std::io;
use std::path::PathBuf;

use uuid::Uuid;

use crate::device::{Device, DeviceError};
use crate::table::{Role, Table, TableError};
use crate::usage::{UsageError, names};

/// The variable in which the boot loader says which partition it was started from, with the GUID of its vendor.
const VARIABLE: &str = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Bytes of attributes before the content of a variable in efivarfs.
const ATTRIBUTES: usize = 4;
/// Names of block devices that are no disks to boot from: made in memory, on top of others, or optical.
const NOT_BOOTED_FROM: [&str; 8] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"];

/// Where the kernel tells of devices. Tests have places of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Device nodes.
    pub dev: PathBuf,
    /// sysfs.
    pub sysfs: PathBuf,
    /// proc.
    pub proc: PathBuf,
    /// EFI variables.
    pub efivars: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            dev: "/dev".into(),
            sysfs: "/sys".into(),
            proc: "/proc".into(),
            efivars: "/sys/firmware/efi/efivars".into(),
        }
    }
}

/// The disk that this machine was booted from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDisk {
    /// The whole disk, such as `/dev/vda`.
    pub path: PathBuf,
    /// The kernel's name of it, such as `vda`.
    pub name: String,
    /// Its partition table.
    pub table: Table,
    /// Number of the partition that was booted from, an EFI system partition.
    pub booted: u32,
}

impl BootDisk {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// When the firmware does not say, when no disk has that partition, or when several have it, as copies of a disk do.
    pub fn find(places: &Places) -> Result<Self, BootDiskError> {
        let guid = booted_from(places)?;
        let mut found: Option<Self> = None;
        let mut unreadable = Vec::new();
        for name in names(&places.sysfs.join("block"))? {
            if NOT_BOOTED_FROM.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let path = places.dev.join(&name);
            let table = match Device::open(&path).map_err(TableError::from).and_then(|device| Table::read(&device)) {
                Ok(Some(table)) => table,
                Ok(None) => continue,
                // One that is broken, or empty like a card reader, must not hide the right one.
                Err(error) => {
                    unreadable.push(format!("{name}: {}", chain(&error)));
                    continue;
                }
            };
            let Some((booted, _)) = table.by_guid(guid) else { continue };
            if let Some(other) = found {
                return Err(BootDiskError::Several { guid, first: other.path, second: path });
            }
            found = Some(Self { path, name, table, booted });
        }
        found.ok_or(BootDiskError::NotFound { guid, unreadable })
    }

    /// Device node of a partition, such as `/dev/vda2`; none if the kernel does not know the partition.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn partition(&self, places: &Places, number: u32) -> Result<Option<PathBuf>, BootDiskError> {
        let disk = places.sysfs.join("block").join(&self.name);
        for name in names(&disk)? {
            let Ok(text) = std::fs::read_to_string(disk.join(&name).join("partition")) else { continue };
            if text.trim_end().parse() == Ok(number) {
                return Ok(Some(places.dev.join(name)));
            }
        }
        Ok(None)
    }

    /// Device node of the one partition with this role.
    ///
    /// # Errors
    ///
    /// When there is none, when there are several, or when the kernel does not know it.
    pub fn find_role(&self, places: &Places, role: Role) -> Result<PathBuf, BootDiskError> {
        let number = match role {
            // A disk may have several of them; the one that was booted from is ours.
            Role::Esp => self.booted,
            Role::Data => {
                let (number, _) = self
                    .table
                    .find(role)?
                    .ok_or_else(|| BootDiskError::NoPartition { path: self.path.clone(), role })?;
                number
            }
        };
        self.partition(places, number)?.ok_or_else(|| BootDiskError::Unknown { path: self.path.clone(), number })
    }
}

/// The unique GUID of the partition that was booted from.
fn booted_from(places: &Places) -> Result<Uuid, BootDiskError> {
    let path = places.efivars.join(VARIABLE);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BootDiskError::NotSaid { path }),
        bytes => bytes.map_err(|source| BootDiskError::Variable { path: path.clone(), source })?,
    };
    let units = bytes.get(ATTRIBUTES..).unwrap_or_default().chunks_exact(2);
    let units: Vec<u16> =
        units.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).take_while(|&unit| unit != 0).collect();
    let text = String::from_utf16_lossy(&units);
    Uuid::try_parse(&text).map_err(|_| BootDiskError::Nonsense { path, text })
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Why the boot disk, or a partition of it, cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum BootDiskError {
    /// The boot loader has not said.
    #[error(
        "it is not known which disk this machine was booted from: the EFI variable {} is missing; boot the image by UEFI, from a \
         disk",
        path.display()
    )]
    NotSaid {
        /// The variable.
        path: PathBuf,
    },
    /// The variable cannot be read.
    #[error("it is not known which disk this machine was booted from: cannot read {}", path.display())]
    Variable {
        /// The variable.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The variable holds no GUID.
    #[error("it is not known which disk this machine was booted from: {} says {text:?}, which is no GUID", path.display())]
    Nonsense {
        /// The variable.
        path: PathBuf,
        /// What is in it.
        text: String,
    },
    /// The kernel does not tell of its disks.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// No disk has the partition.
    #[error(
        "no disk has the partition {guid}, from which this machine was booted{}; the kernel may lack the driver for that disk",
        shown(unreadable)
    )]
    NotFound {
        /// Unique GUID of the partition.
        guid: Uuid,
        /// Disks that could not be read, and why.
        unreadable: Vec<String>,
    },
    /// Several disks have it.
    #[error(
        "the disks {} and {} both have the partition {guid}, from which this machine was booted: one is a copy of the other; \
         nothing was changed: take one of them out",
        first.display(), second.display()
    )]
    Several {
        /// Unique GUID of the partition.
        guid: Uuid,
        /// One disk.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// The disk lacks a partition.
    #[error("the disk {} has no {role}; nothing was changed: install the image anew, or put the right disk back", path.display())]
    NoPartition {
        /// The disk.
        path: PathBuf,
        /// What is missing.
        role: Role,
    },
    /// The kernel does not know the partition.
    #[error("the kernel does not know partition {number} of {}, which is in its table", path.display())]
    Unknown {
        /// The disk.
        path: PathBuf,
        /// Number of the partition.
        number: u32,
    },
    /// The table is of no use.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The disk failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn shown(unreadable: &[String]) -> String {
    if unreadable.is_empty() { String::new() } else { format!("; could not be read: {}", unreadable.join(", ")) }
}
