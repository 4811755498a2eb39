//! The disks of a machine: partition tables, the disk that was booted from, and how a disk is laid out and grown.
//!
//! - [`Table`] is a GPT as it is on a disk, read from whichever copy is whole, and written in an order in which a power cut
//!   leaves one whole copy.
//! - [`DiskLayout`] is the plan of a new disk (EFI system partition, data partition), for images and for installation. The same
//!   request gives the same bytes.
//! - [`BootDisk`] is the disk that the firmware has booted from, with the partitions that a machine uses (metropolis.md C.4).
//! - [`Growth`] is the plan by which the data partition takes what is free behind it.
//! - [`InstallPlan`] puts an image on a disk.
//! - [`Content`] says what is on a device, and [`Usage`] who uses it: nothing is formatted that is not blank and free.
//!
//! What changes a disk is a plan first: a value that can be printed, compared and refused. Executing it makes no choices. This
//! crate knows nothing of nodes and clusters.

#![forbid(unsafe_code)]

mod boot;
mod content;
mod device;
mod growth;
mod install;
mod kind;
mod layout;
mod sectors;
mod table;
mod usage;

pub use boot::{BootDisk, BootDiskError, Places};
pub use content::{Content, END_LOOKED_AT, START_LOOKED_AT};
pub use device::{Device, DeviceError, DeviceKind};
pub use growth::{Growth, GrowthError, GrowthPlan, Told};
pub use install::{InstallError, InstallPlan, InstallRequest, Installing};
pub use kind::{KindError, meant_for_something_else};
pub use layout::{DEFAULT_ESP_SIZE, DiskLayout, Guids, LEAST_DATA_SIZE, LayoutError, LayoutRequest};
pub use sectors::{ALIGNMENT, MIB, Region, SectorSize};
pub use table::{Copies, Partition, Role, Table, TableError};
pub use usage::{DeviceNumbers, Mapping, Mount, Usage, UsageError, mappings_on, mounts, stands_on};

use uuid::{Uuid, uuid};

/// Type of an EFI system partition.
pub const ESP_TYPE: Uuid = uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");

/// Type of the data partition (metropolis.md C.4).
pub const DATA_TYPE: Uuid = uuid!("9eeec464-6885-414a-b278-4305c51f7966");
