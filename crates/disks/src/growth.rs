//! [`Growth`]: how the data partition takes what is free behind it.
//!
//! An image has a small data partition, and the disk that it is put on is larger; and the disk of a virtual machine may be made
//! larger at any time. A machine looks at each start, before it opens the data partition.

use std::fmt;
use std::os::fd::AsFd as _;

use crate::device::{Device, DeviceKind};
use crate::sectors::{ALIGNMENT, Region};
use crate::table::{Copies, Role, Table, TableError};

/// What is to be done about the size of the data partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing.
    Nothing,
    /// This.
    Plan(GrowthPlan),
}

/// The plan: the same partition, longer; or the same table, whole at both ends again. It can be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowthPlan {
    /// Number of the data partition.
    pub number: u32,
    /// Where it is.
    pub from: Region,
    /// Where it will be: it begins where it began.
    pub to: Region,
    /// The table as it was read.
    before: Table,
    /// The table as it will be.
    after: Table,
}

/// How the kernel was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It knows the new size of the partition.
    Resized,
    /// It has read the whole table anew.
    ReadAnew,
    /// There was nobody to tell: it is an image file.
    NotNeeded,
}

impl Growth {
    /// Looks what can be done. The data partition is made to end at the last multiple of [`ALIGNMENT`] that the disk has room for,
    /// and a table that is not whole at both ends of the disk is completed.
    ///
    /// # Errors
    ///
    /// When there is no data partition, or several; or when another partition is behind it, so that it cannot grow although there
    /// is room.
    pub fn plan(table: &Table) -> Result<Self, GrowthError> {
        let (number, partition) = table.find(Role::Data)?.ok_or(GrowthError::NoDataPartition)?;
        let from = partition.region;
        let end = (table.usable().end() / ALIGNMENT * ALIGNMENT).max(from.end());
        let behind = table.partitions.iter().find(|(_, other)| other.region.start >= from.end());
        let to = match behind {
            None => Region { start: from.start, length: end - from.start },
            Some((&other, _)) if table.free_at_end() >= ALIGNMENT => {
                return Err(GrowthError::InTheWay { number, other });
            }
            Some(_) => from,
        };
        let whole = match table.copies {
            Copies::Both => true,
            Copies::BeginningOnly | Copies::EndOnly => false,
        };
        if to == from && whole {
            return Ok(Self::Nothing);
        }
        let mut after = table.clone();
        after.copies = Copies::Both;
        if let Some(partition) = after.partitions.get_mut(&number) {
            partition.region = to;
        }
        Ok(Self::Plan(GrowthPlan { number, from, to, before: table.clone(), after }))
    }
}

impl GrowthPlan {
    /// Writes the table and tells the kernel, which may have the partition in use. If the power fails, the table is the old or the
    /// new one.
    ///
    /// # Errors
    ///
    /// When the disk is not as it was planned for any more, when it fails, or when the kernel does not take the new size: then it
    /// does at the next start.
    pub fn execute(&self, device: &Device) -> Result<Told, GrowthError> {
        if Table::read(device)?.as_ref() != Some(&self.before) {
            return Err(GrowthError::Changed);
        }
        self.after.write(device, "disks/growth")?;
        match device.kind() {
            DeviceKind::Image => Ok(Told::NotNeeded),
            DeviceKind::Block { .. } => {
                let resized = polis_sys::resize_partition(device.as_fd(), self.number, self.to.start, self.to.length);
                match resized {
                    Ok(()) => Ok(Told::Resized),
                    // A kernel that could not read the table does not know the partition: then nobody uses it.
                    Err(_) => match polis_sys::read_partitions_anew(device.as_fd()) {
                        Ok(()) => Ok(Told::ReadAnew),
                        Err(source) => Err(GrowthError::KernelNotTold { source }),
                    },
                }
            }
        }
    }
}

impl fmt::Display for GrowthPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, from, to, before, .. } = self;
        if from == to {
            write!(formatter, "partition {number} (data) stays {from}")?;
        } else {
            write!(formatter, "partition {number} (data) grows from {from} to {to}")?;
        }
        match before.copies {
            Copies::Both => Ok(()),
            Copies::BeginningOnly => {
                formatter.write_str("; the copy of the partition table at the end of the disk is written anew")
            }
            Copies::EndOnly => {
                formatter.write_str("; the copy of the partition table at the beginning of the disk is written anew")
            }
        }
    }
}

/// Why a data partition cannot grow.
#[derive(Debug, thiserror::Error)]
pub enum GrowthError {
    /// The table is of no use.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no data partition.
    #[error("the disk has no data partition")]
    NoDataPartition,
    /// Another partition is behind it.
    #[error(
        "the data partition, number {number}, stays as it is: partition {other} is behind it; to use all of the disk, move that one \
         elsewhere"
    )]
    InTheWay {
        /// Number of the data partition.
        number: u32,
        /// Number of the other one.
        other: u32,
    },
    /// Somebody has changed the disk meanwhile.
    #[error("the partition table was changed while the data partition was to grow; nothing was written")]
    Changed,
    /// The kernel keeps the old size.
    #[error(
        "the data partition has grown, and the kernel still knows its old size: it will know the new one after a restart"
    )]
    KernelNotTold {
        /// What it says.
        #[source]
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{DiskLayout, Guids, LayoutRequest};
    use crate::sectors::{MIB, SectorSize};
    use crate::table::Partition;

    fn table(disk_size: u64) -> Table {
        let request = LayoutRequest {
            disk_size: 100 * MIB,
            sector_size: SectorSize::Bytes512,
            esp_size: 64 * MIB,
            least_data_size: MIB,
            guids: Guids::from_seed(b"growth"),
        };
        Table { disk_size, ..DiskLayout::plan(&request).unwrap().table }
    }

    #[test]
    fn it_ends_at_the_last_mebibyte_that_is_free() {
        for (disk_size, expected) in [
            (100 * MIB, None),
            (100 * MIB + 32 * 512, None),
            (100 * MIB + 33 * 512, Some(35)),
            (200 * MIB + 512, Some(134)),
        ] {
            let planned = match Growth::plan(&table(disk_size)).unwrap() {
                Growth::Nothing => None,
                Growth::Plan(plan) => {
                    assert_eq!((plan.number, plan.from), (2, Region { start: 65 * MIB, length: 34 * MIB }));
                    assert_eq!(plan.to.start, plan.from.start);
                    Some(plan.to.length / MIB)
                }
            };
            assert_eq!(planned, expected, "{disk_size}");
        }
    }

    #[test]
    fn a_partition_behind_it_stays_where_it_is() {
        let mut table = table(200 * MIB);
        let region = Region { start: 120 * MIB, length: 10 * MIB };
        let other = Partition {
            kind: uuid::Uuid::from_u128(1),
            guid: uuid::Uuid::from_u128(2),
            region,
            attributes: 0,
            name: String::new(),
        };
        table.partitions.insert(7, other);
        let error = Growth::plan(&table).unwrap_err();
        assert!(matches!(error, GrowthError::InTheWay { number: 2, other: 7 }), "{error:?}");
        // One that ends where the disk does is no news at each start.
        table.disk_size = 131 * MIB;
        assert_eq!(Growth::plan(&table).unwrap(), Growth::Nothing);
    }

    #[test]
    fn a_table_that_is_not_whole_is_completed() {
        let table = Table { copies: Copies::EndOnly, ..table(100 * MIB) };
        let Growth::Plan(plan) = Growth::plan(&table).unwrap() else { panic!("nothing planned") };
        assert_eq!(plan.from, plan.to);
        let expected = "partition 2 (data) stays 34 MiB from 65 MiB; the copy of the partition table at the beginning of the disk is written anew";
        assert_eq!(plan.to_string(), expected);
    }

    #[test]
    fn which_partition_is_meant_must_be_clear() {
        let mut none = table(200 * MIB);
        let data = none.partitions.remove(&2).unwrap();
        assert!(matches!(Growth::plan(&none), Err(GrowthError::NoDataPartition)));
        let mut two = table(200 * MIB);
        let region = Region { start: 120 * MIB, length: MIB };
        two.partitions.insert(3, Partition { region, ..data });
        let error = Growth::plan(&two).unwrap_err();
        assert!(matches!(error, GrowthError::Table(TableError::Duplicate { first: 2, second: 3, .. })), "{error:?}");
    }
}
