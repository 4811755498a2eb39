//! [`Content`]: whether something is on a device.
//!
//! What is to be formatted must be blank: zeroes, at the places where every known file system, volume manager and partition table
//! keeps its first structures. Whoever has data that no tool recognises has data all the same, so it is not enough that no
//! signature is found. The signatures only give the thing a name.

use std::fmt;

use crate::device::{Device, DeviceError};
use crate::sectors::{MIB, Region};

/// Bytes that are looked at from the start. The last known structure that begins a file system is at 1 MiB (VMFS).
pub const START_LOOKED_AT: u64 = 4 * MIB;
/// Bytes that are looked at before the end, where RAID and ZFS keep theirs, and the second copy of a GPT is.
pub const END_LOOKED_AT: u64 = MIB;

/// What is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing: zeroes.
    Blank,
    /// Something with a signature that is known.
    Known {
        /// What it is, for people.
        name: &'static str,
    },
    /// Something.
    Unknown {
        /// Offset of its first byte that is not zero, in bytes from the start of what was looked at.
        offset: u64,
    },
}

/// A signature: where it is and how it looks.
struct Signature {
    offset: usize,
    bytes: &'static [u8],
    name: &'static str,
}

/// The specific ones first: FAT and NTFS have the mark of an MBR, and a GPT has a protective MBR before it.
const SIGNATURES: &[Signature] = &[
    Signature { offset: 0, bytes: b"LUKS\xba\xbe", name: "an encrypted volume (LUKS)" },
    Signature { offset: 0, bytes: b"XFSB", name: "an XFS file system" },
    Signature { offset: 0x438, bytes: b"\x53\xef", name: "an ext2, ext3 or ext4 file system" },
    Signature { offset: 0x1_0040, bytes: b"_BHRfS_M", name: "a btrfs file system" },
    Signature { offset: 0x400, bytes: b"\x10\x20\xf5\xf2", name: "an F2FS file system" },
    Signature { offset: 0x200, bytes: b"LABELONE", name: "an LVM physical volume" },
    Signature { offset: 0x0, bytes: b"LABELONE", name: "an LVM physical volume" },
    Signature { offset: 0x1000, bytes: b"\xfc\x4e\x2b\xa9", name: "a member of a RAID (md)" },
    Signature { offset: 0, bytes: b"\xfc\x4e\x2b\xa9", name: "a member of a RAID (md)" },
    Signature { offset: 0xff6, bytes: b"SWAPSPACE2", name: "swap space" },
    Signature { offset: 0x8001, bytes: b"CD001", name: "an ISO 9660 image" },
    Signature { offset: 0, bytes: b"hsqs", name: "a squashfs image" },
    Signature { offset: 3, bytes: b"NTFS    ", name: "an NTFS file system" },
    Signature { offset: 3, bytes: b"EXFAT   ", name: "an exFAT file system" },
    Signature { offset: 3, bytes: b"-FVE-FS-", name: "an encrypted volume (BitLocker)" },
    Signature { offset: 82, bytes: b"FAT32   ", name: "a FAT file system" },
    Signature { offset: 54, bytes: b"FAT16   ", name: "a FAT file system" },
    Signature { offset: 512, bytes: b"EFI PART", name: "a partition table (GPT)" },
    Signature { offset: 4096, bytes: b"EFI PART", name: "a partition table (GPT)" },
    Signature { offset: 510, bytes: b"\x55\xaa", name: "a partition table (MBR)" },
];

impl Content {
    /// Looks at a part of a device. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the device cannot be read.
    pub fn of(device: &Device, region: Region) -> Result<Self, DeviceError> {
        let start = read(device, region.start, region.length.min(START_LOOKED_AT))?;
        if let Some(offset) = first_not_zero(&start) {
            return Ok(Self::named(&start).unwrap_or(Self::Unknown { offset }));
        }
        let length = region.length.min(END_LOOKED_AT);
        let end = read(device, region.end() - length, length)?;
        Ok(match first_not_zero(&end) {
            Some(offset) => Self::Unknown { offset: region.length - length + offset },
            None => Self::Blank,
        })
    }

    /// Looks at a whole device. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the device cannot be read.
    pub fn of_whole(device: &Device) -> Result<Self, DeviceError> {
        Self::of(device, Region { start: 0, length: device.size() })
    }

    fn named(start: &[u8]) -> Option<Self> {
        let matches = |one: &&Signature| start.get(one.offset..).is_some_and(|rest| rest.starts_with(one.bytes));
        SIGNATURES.iter().find(matches).map(|one| Self::Known { name: one.name })
    }
}

impl fmt::Display for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => formatter.write_str("nothing"),
            Self::Known { name } => formatter.write_str(name),
            Self::Unknown { offset } => write!(formatter, "data of an unknown kind at byte {offset}"),
        }
    }
}

fn read(device: &Device, offset: u64, length: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    device.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

fn first_not_zero(bytes: &[u8]) -> Option<u64> {
    bytes.iter().position(|&byte| byte != 0).map(|offset| offset as u64)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn anything_at_either_end_is_something() {
        let size = 8 * MIB;
        let unknown = |offset| Content::Unknown { offset };
        for (offset, bytes, expected) in [
            (0, &b""[..], Content::Blank),
            (START_LOOKED_AT, b"x", Content::Blank),
            (START_LOOKED_AT - 1, b"x", unknown(START_LOOKED_AT - 1)),
            (size - 1, b"x", unknown(size - 1)),
            (size - END_LOOKED_AT, b"x", unknown(size - END_LOOKED_AT)),
            (0, b"XFSB", Content::Known { name: "an XFS file system" }),
            (0, b"LUKS\xba\xbe", Content::Known { name: "an encrypted volume (LUKS)" }),
            (1080, b"\x53\xef", Content::Known { name: "an ext2, ext3 or ext4 file system" }),
            (510, b"\x55\xaaEFI PART", Content::Known { name: "a partition table (GPT)" }),
            (510, b"\x55\xaa", Content::Known { name: "a partition table (MBR)" }),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(size).unwrap();
            file.as_file().write_all_at(bytes, offset).unwrap();
            let device = Device::open(file.path()).unwrap();
            assert_eq!(Content::of_whole(&device).unwrap(), expected, "{offset}");
        }
    }

    #[test]
    fn only_the_part_that_is_meant_is_looked_at() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 3 << 20], 0).unwrap();
        file.as_file().write_all_at(&[0; 1 << 20], MIB).unwrap();
        let device = Device::open(file.path()).unwrap();
        let content = |start, length| Content::of(&device, Region { start, length }).unwrap();
        assert_eq!(content(MIB, MIB), Content::Blank);
        assert_eq!(content(MIB, MIB + 1), Content::Unknown { offset: MIB });
        assert_eq!(content(MIB, 0), Content::Blank);
    }
}
