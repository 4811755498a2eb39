//! [`InstallPlan`]: an image onto a disk.
//!
//! The disk gets a table of its own with new GUIDs, the image's EFI system partition as it is, and a blank data partition over the
//! rest. The plan is made by looking, and can be printed and refused. It is executed on the disk that it was made for: just before
//! the first write, the size and the first bytes are compared again, and the disk is opened so that nobody else can use it.
//!
//! The table is written last. Until then the disk boots, if at all, what it booted before.

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::boot::Places;
use crate::content::{Content, END_LOOKED_AT, START_LOOKED_AT};
use crate::device::{Device, DeviceError, DeviceKind};
use crate::layout::{DiskLayout, Guids, LEAST_DATA_SIZE, LayoutError, LayoutRequest};
use crate::sectors::{MIB, Region, SectorSize, Size};
use crate::table::{Role, Table, TableError};
use crate::usage::{Usage, UsageError};

/// Bytes that are copied at once.
const CHUNK: u64 = MIB;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallRequest {
    /// The image.
    pub image: PathBuf,
    /// The whole disk.
    pub disk: PathBuf,
    /// Whether what is on the disk may be lost.
    pub accept_loss: bool,
}

/// What will be done. It can be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallPlan {
    image: PathBuf,
    disk: PathBuf,
    /// The EFI system partition in the image.
    from: Region,
    layout: DiskLayout,
    /// What was on the disk.
    content: Content,
    /// Hash of the first mebibyte of the disk.
    start: [u8; 32],
}

/// How far an installation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installing {
    /// What is being done, for people.
    pub step: &'static str,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do.
    pub total: u64,
}

impl InstallPlan {
    /// Looks at the image and the disk and makes the plan. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the image is none, or the disk is in use, too small, not a whole disk, or not blank without
    /// [`InstallRequest::accept_loss`].
    pub fn new(request: &InstallRequest, places: &Places) -> Result<Self, InstallError> {
        let InstallRequest { image, disk, accept_loss } = request;
        let from = esp_of_image(image)?;
        let device = Device::open(disk)?;
        if is_partition(places, &device) {
            return Err(InstallError::NotWholeDisk { disk: disk.clone() });
        }
        let uses = Usage::of(places, &device)?;
        if !uses.is_empty() {
            return Err(InstallError::InUse { disk: disk.clone(), uses });
        }
        let layout = DiskLayout::plan(&LayoutRequest {
            disk_size: device.size(),
            sector_size: device.sector_size(),
            esp_size: from.length,
            least_data_size: LEAST_DATA_SIZE,
            guids: Guids::random(),
        })
        .map_err(|source| InstallError::Layout { disk: disk.clone(), source })?;
        if device.sector_size() != SectorSize::Bytes512 {
            return Err(InstallError::Sectors { disk: disk.clone(), bytes: device.sector_size().bytes() });
        }
        let content = Content::of_whole(&device)?;
        if content != Content::Blank && !accept_loss {
            let node = Table::read(&device)
                .ok()
                .flatten()
                .is_some_and(|table| table.partitions.values().any(|partition| partition.kind == Role::Data.kind()));
            return Err(InstallError::NotBlank { disk: disk.clone(), content, node });
        }
        let start = start_of(&device)?;
        Ok(Self { image: image.clone(), disk: disk.clone(), from, layout, content, start })
    }

    /// Does it. Blocks for as long as it takes to copy the EFI system partition.
    ///
    /// # Errors
    ///
    /// When the disk is not the one any more that the plan was made for, when it is in use, or when it fails. The same installation
    /// can be started again.
    pub fn execute(&self, places: &Places, mut progress: impl FnMut(Installing)) -> Result<(), InstallError> {
        let image = Device::open(&self.image)?;
        let device = Device::open_exclusive(&self.disk)?;
        let uses = Usage::of(places, &device)?;
        if !uses.is_empty() {
            return Err(InstallError::InUse { disk: self.disk.clone(), uses });
        }
        if device.size() != self.layout.table.disk_size || start_of(&device)? != self.start {
            return Err(InstallError::Changed { disk: self.disk.clone() });
        }
        polis_fault::point("disks/install", "begin");
        let DiskLayout { esp, data, .. } = &self.layout;
        let mut chunk = vec![0; usize::try_from(CHUNK).unwrap_or_default()];
        let mut done = 0;
        while done < self.from.length {
            progress(Installing { step: "copying the EFI system partition", done, total: self.from.length });
            let length = usize::try_from(CHUNK.min(self.from.length - done)).unwrap_or_default();
            image.read_at(self.from.start + done, &mut chunk[..length])?;
            device.write_at(esp.start + done, &chunk[..length])?;
            done += length as u64;
        }
        // Where a node looks before it formats: what was there is lost by this installation, and must not look like data.
        zero(&device, Region { start: data.start, length: START_LOOKED_AT.min(data.length) })?;
        zero(
            &device,
            Region { start: data.end() - END_LOOKED_AT.min(data.length), length: END_LOOKED_AT.min(data.length) },
        )?;
        device.sync()?;
        polis_fault::point("disks/install", "content-synced");
        progress(Installing { step: "writing the partition table", done, total: done });
        self.layout.write(&device)?;
        polis_fault::point("disks/install", "done");
        if let DeviceKind::Block { .. } = device.kind() {
            // Whoever boots from the disk reads the table anew anyway.
            let _ = polis_sys::read_partitions_anew(rustix::fd::AsFd::as_fd(&device));
        }
        Ok(())
    }

    /// What was on the disk, and will be lost.
    #[must_use]
    pub const fn content(&self) -> Content {
        self.content
    }

    /// What will be where.
    #[must_use]
    pub const fn layout(&self) -> &DiskLayout {
        &self.layout
    }
}

impl fmt::Display for InstallPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, disk, from, layout, content, start: _ } = self;
        writeln!(
            formatter,
            "disk {}: {content} on it{}",
            disk.display(),
            match content {
                Content::Blank => "",
                Content::Known { .. } | Content::Unknown { .. } => ", WHICH WILL BE LOST",
            }
        )?;
        write!(formatter, "{layout}")?;
        writeln!(formatter, "copy the EFI system partition ({}) of {}", Size(from.length), image.display())?;
        writeln!(formatter, "clear both ends of the data partition")
    }
}

fn zero(device: &Device, region: Region) -> Result<(), DeviceError> {
    let zeroes = vec![0; usize::try_from(region.length).unwrap_or_default()];
    device.write_at(region.start, &zeroes)
}

fn start_of(device: &Device) -> Result<[u8; 32], DeviceError> {
    let mut bytes = vec![0; usize::try_from(MIB.min(device.size())).unwrap_or_default()];
    device.read_at(0, &mut bytes)?;
    Ok(Sha256::digest(&bytes).into())
}

fn esp_of_image(image: &Path) -> Result<Region, InstallError> {
    let device = Device::open(image)?;
    let table = Table::read(&device)?.ok_or_else(|| InstallError::NoImage { image: image.to_owned() })?;
    let (_, esp) = table.find(Role::Esp)?.ok_or_else(|| InstallError::NoImage { image: image.to_owned() })?;
    Ok(esp.region)
}

fn is_partition(places: &Places, device: &Device) -> bool {
    match device.kind() {
        DeviceKind::Block { major, minor } => {
            places.sysfs.join(format!("dev/block/{major}:{minor}/partition")).exists()
        }
        DeviceKind::Image => false,
    }
}

/// Why an image is not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The image is none.
    #[error("{} is no disk image of Polis: it has no EFI system partition in a GPT; make one with `polis image build`", image.display())]
    NoImage {
        /// The image.
        image: PathBuf,
    },
    /// The disk is a partition.
    #[error("{} is a partition, and an image needs a whole disk; nothing was changed: name the disk", disk.display())]
    NotWholeDisk {
        /// The disk.
        disk: PathBuf,
    },
    /// The disk is in use.
    #[error("the disk {} is in use: {}; nothing was changed: stop that first, or name another disk", disk.display(), listed(uses))]
    InUse {
        /// The disk.
        disk: PathBuf,
        /// By whom.
        uses: Vec<Usage>,
    },
    /// The image cannot be laid out on this disk.
    #[error("the image does not fit on {}; nothing was changed", disk.display())]
    Layout {
        /// The disk.
        disk: PathBuf,
        /// Why.
        #[source]
        source: LayoutError,
    },
    /// The sectors of the disk are of another size than those of the image.
    #[error(
        "the disk {} has sectors of {bytes} bytes, and the file system in the image has 512; nothing was changed: use a disk with \
         sectors of 512 bytes, real or emulated",
        disk.display()
    )]
    Sectors {
        /// The disk.
        disk: PathBuf,
        /// Bytes of a sector.
        bytes: u64,
    },
    /// There is something on the disk.
    #[error(
        "the disk {} is not blank: there is {content} on it{}; nothing was changed: if all of it may be lost, give --yes",
        disk.display(),
        if *node { ", with the data partition of a node" } else { "" }
    )]
    NotBlank {
        /// The disk.
        disk: PathBuf,
        /// What is there.
        content: Content,
        /// Whether it is the disk of a node.
        node: bool,
    },
    /// The disk has changed.
    #[error(
        "the disk {} is not as it was when the installation was planned: another disk, or somebody writes to it; nothing was changed",
        disk.display()
    )]
    Changed {
        /// The disk.
        disk: PathBuf,
    },
    /// The kernel does not say who uses the disk.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The disk or the image failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A table is of no use or was not written.
    #[error(transparent)]
    Table(#[from] TableError),
}

fn listed(uses: &[Usage]) -> String {
    uses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
