//! [`DiskLayout`]: the plan of a new disk with an EFI system partition and a data partition.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

use crate::device::Device;
use crate::sectors::{ALIGNMENT, MIB, Region, SectorSize, Size};
use crate::table::{Copies, ENTRIES, Partition, Role, Table, TableError};

/// Size of the EFI system partition if nothing else is asked for, in bytes: room for two slots of a unified kernel image of 48 MiB
/// (metropolis.md C.4 has as much), the one that is being written, and the node's journal, several times over.
pub const DEFAULT_ESP_SIZE: u64 = 384 * MIB;

/// Smallest EFI system partition, in bytes. FAT32 has at least 65525 clusters, which are 512 bytes at the least.
const LEAST_ESP_SIZE: u64 = 34 * MIB;

/// Smallest data partition of an installed disk, in bytes: LUKS takes 16 MiB, an XFS is at least 300 MiB, and etcd writes ahead
/// 128 MiB before it has any content.
pub const LEAST_DATA_SIZE: u64 = 1024 * MIB;

/// GUIDs of a new disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guids {
    /// Of the disk.
    pub disk: Uuid,
    /// Of the EFI system partition.
    pub esp: Uuid,
    /// Of the data partition.
    pub data: Uuid,
}

impl Guids {
    /// Random ones: for a disk that is like no other.
    #[must_use]
    pub fn random() -> Self {
        Self { disk: Uuid::new_v4(), esp: Uuid::new_v4(), data: Uuid::new_v4() }
    }

    /// Ones that depend on `seed` and nothing else: for an image that has the same bytes each time it is built.
    #[must_use]
    pub fn from_seed(seed: &[u8]) -> Self {
        let guid = |label: &str| {
            let hash = Sha256::new().chain_update(label).chain_update([0]).chain_update(seed).finalize();
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&hash[..16]);
            Builder::from_custom_bytes(bytes).into_uuid()
        };
        Self { disk: guid("polis disk"), esp: guid("polis esp"), data: guid("polis data") }
    }
}

/// What is asked of a new disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRequest {
    /// Size of the disk, in bytes.
    pub disk_size: u64,
    /// Its sectors.
    pub sector_size: SectorSize,
    /// Size of the EFI system partition, in bytes; rounded up to [`ALIGNMENT`].
    pub esp_size: u64,
    /// Size that the data partition must have at least, in bytes. An image that grows at its first boot needs only one
    /// [`ALIGNMENT`]; an installed disk, [`LEAST_DATA_SIZE`].
    pub least_data_size: u64,
    /// Its GUIDs.
    pub guids: Guids,
}

/// The plan of a new disk: what is where. It can be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLayout {
    /// The EFI system partition, number 1.
    pub esp: Region,
    /// The data partition, number 2.
    pub data: Region,
    /// The table.
    pub table: Table,
}

impl DiskLayout {
    /// Makes the plan.
    ///
    /// # Errors
    ///
    /// When the disk is too small, or the EFI system partition is.
    pub fn plan(request: &LayoutRequest) -> Result<Self, LayoutError> {
        let LayoutRequest { disk_size, sector_size, esp_size, least_data_size, guids } = *request;
        if esp_size < LEAST_ESP_SIZE {
            return Err(LayoutError::SmallEsp { asked: esp_size, least: LEAST_ESP_SIZE });
        }
        let mut table = Table {
            guid: guids.disk,
            sector_size,
            disk_size,
            entries: ENTRIES,
            partitions: BTreeMap::new(),
            copies: Copies::Both,
        };
        let usable = table.usable();
        let start = usable.start.next_multiple_of(ALIGNMENT);
        let end = usable.end() / ALIGNMENT * ALIGNMENT;
        let esp = Region { start, length: esp_size.next_multiple_of(ALIGNMENT) };
        let data = Region { start: esp.end(), length: end.saturating_sub(esp.end()) };
        if data.length < least_data_size.max(ALIGNMENT) {
            let second_copy = (1 + table.array_sectors()) * sector_size.bytes();
            let data = least_data_size.max(1).next_multiple_of(ALIGNMENT);
            let needed = esp.end().saturating_add(data).saturating_add(second_copy);
            return Err(LayoutError::SmallDisk { size: disk_size, needed });
        }
        for (number, role, region, guid, name) in
            [(1, Role::Esp, esp, guids.esp, "EFI system"), (2, Role::Data, data, guids.data, "Polis data")]
        {
            let partition = Partition { kind: role.kind(), guid, region, attributes: 0, name: name.to_owned() };
            table.partitions.insert(number, partition);
        }
        Ok(Self { esp, data, table })
    }

    /// Writes the partition table of this plan; the content of the partitions is the caller's. Everything that was on the disk is
    /// lost.
    ///
    /// # Errors
    ///
    /// When the device has another size than the plan, or fails.
    pub fn write(&self, device: &Device) -> Result<(), TableError> {
        self.table.write(device, "disks/layout")
    }
}

impl fmt::Display for DiskLayout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "partition table: GPT {}, disk of {}", self.table.guid, Size(self.table.disk_size))?;
        for (number, partition) in &self.table.partitions {
            let Partition { name, region, guid, .. } = partition;
            writeln!(formatter, "partition {number}: {name}, {region}, {guid}")?;
        }
        Ok(())
    }
}

/// Why a disk cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The disk is too small.
    #[error("a disk of {} is too small: {} are needed; use a larger disk, or a smaller EFI system partition", Size(*size), Size(*needed))]
    SmallDisk {
        /// Its size, in bytes.
        size: u64,
        /// What it would need, in bytes.
        needed: u64,
    },
    /// The EFI system partition is too small.
    #[error("an EFI system partition of {} is too small: FAT32 needs {}", Size(*asked), Size(*least))]
    SmallEsp {
        /// What was asked for, in bytes.
        asked: u64,
        /// What it needs, in bytes.
        least: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(disk_size: u64) -> LayoutRequest {
        LayoutRequest {
            disk_size,
            sector_size: SectorSize::Bytes512,
            esp_size: 64 * MIB,
            least_data_size: 16 * MIB,
            guids: Guids::from_seed(b"test"),
        }
    }

    #[test]
    fn partitions_are_aligned_and_leave_room_for_both_copies() {
        // The exact size that is needed, and sizes that are no multiple of anything.
        for (size, data) in
            [(81 * MIB + 33 * 512, 16), (82 * MIB + 32 * 512, 16), (82 * MIB + 33 * 512, 17), (100 * MIB + 4096, 34)]
        {
            let layout = DiskLayout::plan(&request(size)).unwrap();
            assert_eq!(layout.esp, Region { start: MIB, length: 64 * MIB }, "{size}");
            assert_eq!(layout.data, Region { start: 65 * MIB, length: data * MIB }, "{size}");
            assert!(layout.data.end() <= layout.table.usable().end(), "{size}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let needed = 81 * MIB + 33 * 512;
        assert!(DiskLayout::plan(&request(needed)).is_ok());
        for size in [0, 512, MIB, 65 * MIB, needed - 512] {
            let error = DiskLayout::plan(&request(size)).unwrap_err();
            assert_eq!(error, LayoutError::SmallDisk { size, needed });
        }
        let small = LayoutRequest { esp_size: MIB, ..request(100 * MIB) };
        let error = DiskLayout::plan(&small).unwrap_err();
        assert_eq!(error.to_string(), "an EFI system partition of 1 MiB is too small: FAT32 needs 34 MiB");
    }

    #[test]
    fn guids_of_a_seed_are_the_same_each_time_and_differ_from_each_other() {
        let Guids { disk, esp, data } = Guids::from_seed(b"one");
        assert_eq!(Guids::from_seed(b"one"), Guids { disk, esp, data });
        assert!(disk != esp && esp != data && disk != data);
        assert_ne!(Guids::from_seed(b"two").disk, disk);
        assert_ne!(Guids::random().disk, Guids::random().disk);
        assert_eq!(disk.get_version_num(), 8, "one of our own making");
    }

    #[test]
    fn the_plan_can_be_read() {
        let layout = DiskLayout::plan(&request(100 * MIB)).unwrap();
        let Guids { disk, esp, data } = Guids::from_seed(b"test");
        assert_eq!(
            layout.to_string(),
            format!(
                "partition table: GPT {disk}, disk of 100 MiB\n\
                 partition 1: EFI system, 64 MiB from 1 MiB, {esp}\n\
                 partition 2: Polis data, 34 MiB from 65 MiB, {data}\n"
            )
        );
    }
}
