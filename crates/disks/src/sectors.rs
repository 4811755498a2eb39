//! Units: sectors, alignment, regions in bytes.

use std::fmt;

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// Partitions begin and end at multiples of this, in bytes: it is a multiple of every sector, erase block and stripe of today.
pub const ALIGNMENT: u64 = MIB;

/// Size of a logical sector, the unit of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes: nearly all disks, and image files.
    Bytes512,
    /// 4096 bytes: disks without emulation of the smaller one.
    Bytes4096,
}

impl SectorSize {
    /// The size that a device names; none for one that no partition table is made for.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::Bytes512),
            4096 => Some(Self::Bytes4096),
            _ => None,
        }
    }

    /// Bytes of one sector.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bytes512 => 512,
            Self::Bytes4096 => 4096,
        }
    }

    pub(crate) const fn of_gpt(self) -> gpt::disk::LogicalBlockSize {
        match self {
            Self::Bytes512 => gpt::disk::LogicalBlockSize::Lb512,
            Self::Bytes4096 => gpt::disk::LogicalBlockSize::Lb4096,
        }
    }
}

/// A part of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub length: u64,
}

impl Region {
    /// The first byte behind it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

impl fmt::Display for Region {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} from {}", Size(self.length), Size(self.start))
    }
}

/// A number of bytes for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(MIB) {
            write!(formatter, "{} MiB", self.0 / MIB)
        } else {
            write!(formatter, "{} bytes", self.0)
        }
    }
}
