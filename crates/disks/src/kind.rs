//! What a partition is meant for, as the table of its disk says.

use uuid::Uuid;

use crate::DATA_TYPE;
use crate::boot::Places;
use crate::device::{Device, DeviceKind};
use crate::table::{Table, TableError};
use crate::usage::UsageError;

/// Types of partitions that data may be kept on: ours, and those that tools give to any partition of a Linux.
const FOR_DATA: [Uuid; 4] = [
    DATA_TYPE,
    uuid::uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4"), // Linux file system
    uuid::uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc"), // LUKS
    uuid::uuid!("7ffec5c9-2d00-49b7-8941-3ea10a5586b7"), // dm-crypt
];

/// The type of a partition that is meant for something else than data; none if `device` is a whole disk, an image file, a partition
/// of a disk without a GPT, or one for data.
///
/// # Errors
///
/// When the kernel does not say, or the table cannot be read.
pub fn meant_for_something_else(places: &Places, device: &Device) -> Result<Option<Uuid>, KindError> {
    let DeviceKind::Block { major, minor } = device.kind() else { return Ok(None) };
    let directory = places.sysfs.join(format!("dev/block/{major}:{minor}"));
    let Ok(number) = std::fs::read_to_string(directory.join("partition")) else { return Ok(None) };
    // The directory of a partition is in that of its disk.
    let parent = std::fs::canonicalize(&directory).map_err(|source| UsageError { path: directory.clone(), source })?;
    let Some(name) = parent.parent().and_then(std::path::Path::file_name) else { return Ok(None) };
    let table = Table::read(&Device::open(&places.dev.join(name)).map_err(TableError::from)?)?;
    let number: Option<u32> = number.trim_end().parse().ok();
    let partition = table.as_ref().zip(number).and_then(|(table, number)| table.partitions.get(&number));
    Ok(partition.map(|partition| partition.kind).filter(|kind| !FOR_DATA.contains(kind)))
}

/// Why the type of a partition is not known.
#[derive(Debug, thiserror::Error)]
pub enum KindError {
    /// The kernel does not say.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}
