//! [`Table`]: a GPT, read from whichever copy is whole.
//!
//! A GPT has a copy at each end of the disk, each a header and an array of entries with checksums. The array is larger than a
//! sector, so a power cut can leave a copy half written; therefore the copy at the end is written and flushed first, then the one
//! at the beginning. What is read is the first copy that is whole in all parts.
//!
//! Headers and entries are encoded and decoded by the `gpt` crate. The order of writing is here, and so is the position of an
//! entry, which is its number: the crate's own way of writing a whole table moves entries to the front when there is a gap, and
//! so would give partitions other numbers.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use gpt::header::{Header, HeaderBuilder};
use gpt::mbr::ProtectiveMBR;
use uuid::Uuid;

use crate::device::{Device, DeviceError};
use crate::sectors::{Region, SectorSize};
use crate::{DATA_TYPE, ESP_TYPE};

/// Bytes of one entry: the only size in use.
const ENTRY_BYTES: u32 = 128;
/// Bytes of a header.
const HEADER_BYTES: u32 = 92;
/// Entries that tables of Polis have: the least that firmware expects.
pub(crate) const ENTRIES: u32 = 128;
/// Most entries that are read. No tool makes more than 128 without being told so; the number comes from the disk and decides how
/// much memory is taken.
const MOST_ENTRIES: u32 = 1024;

/// A GPT and the size of the disk that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// GUID of the disk.
    pub guid: Uuid,
    /// Unit of the table.
    pub sector_size: SectorSize,
    /// Size of the disk in bytes, now. The table may have been made when it was smaller.
    pub disk_size: u64,
    /// Number of entries, used or not.
    pub entries: u32,
    /// The partitions by number, which is the number of the entry, counted from 1.
    pub partitions: BTreeMap<u32, Partition>,
    /// Which copies are whole and where they belong.
    pub copies: Copies,
}

/// Which copies of a table are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Both, and they say the same, at the two ends of the disk.
    Both,
    /// That at the beginning is whole; the other one is missing, damaged, different, or where the disk ended before it grew.
    BeginningOnly,
    /// That at the end is whole; the one at the beginning is missing, damaged or different in its header.
    EndOnly,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Type.
    pub kind: Uuid,
    /// Unique GUID.
    pub guid: Uuid,
    /// Where it is.
    pub region: Region,
    /// Attribute bits.
    pub attributes: u64,
    /// Name, at most 36 characters of UTF-16.
    pub name: String,
}

/// What a partition is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The EFI system partition.
    Esp,
    /// The data partition.
    Data,
}

impl Role {
    /// The type of its partition.
    #[must_use]
    pub const fn kind(self) -> Uuid {
        match self {
            Self::Esp => ESP_TYPE,
            Self::Data => DATA_TYPE,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Esp => "EFI system partition",
            Self::Data => "data partition",
        })
    }
}

impl Table {
    /// Reads the table of a disk; none if neither end has one.
    ///
    /// # Errors
    ///
    /// When there is one and no copy is whole, or when the disk cannot be read.
    pub fn read(device: &Device) -> Result<Option<Self>, TableError> {
        let sector = device.sector_size().bytes();
        let last = (device.size() / sector).saturating_sub(1);
        let beginning = Copy::read(device, 1)?;
        let end = Copy::read(device, last)?;
        let (copy, copies) = match (beginning, end) {
            (Found::Absent, Found::Absent) => return Ok(None),
            (Found::Whole(beginning), Found::Whole(end)) if beginning.agrees_with(&end) => (beginning, Copies::Both),
            (Found::Whole(beginning), _) => (beginning, Copies::BeginningOnly),
            (Found::Absent | Found::Damaged(_), Found::Whole(end)) => (end, Copies::EndOnly),
            (Found::Damaged(problem), Found::Absent | Found::Damaged(_)) | (Found::Absent, Found::Damaged(problem)) => {
                return Err(TableError::Damaged { path: device.path().to_owned(), problem });
            }
        };
        Self::from_copy(device, copy, copies).map(Some)
    }

    fn from_copy(device: &Device, copy: Copy, copies: Copies) -> Result<Self, TableError> {
        let damaged =
            |problem: &str| TableError::Damaged { path: device.path().to_owned(), problem: problem.to_owned() };
        let sector = device.sector_size().bytes();
        let mut partitions = BTreeMap::new();
        for (number, entry) in copy.entries {
            let sectors = entry.sectors_len().map_err(|_| damaged("a partition ends before it begins"))?;
            let region = entry.first_lba.checked_mul(sector).zip(sectors.checked_mul(sector));
            let region = region.map(|(start, length)| Region { start, length });
            let region = region.filter(|region| region.end() <= device.size() && region.start >= 2 * sector);
            let region = region.ok_or_else(|| damaged("a partition is outside of the disk"))?;
            partitions.insert(
                number,
                Partition {
                    kind: entry.part_type_guid.guid,
                    guid: entry.part_guid,
                    region,
                    attributes: entry.flags,
                    name: entry.name,
                },
            );
        }
        let mut regions: Vec<Region> = partitions.values().map(|partition| partition.region).collect();
        regions.sort_unstable_by_key(|region| region.start);
        let overlap = |pair: &[Region]| matches!(pair, [one, next] if one.end() > next.start);
        if regions.windows(2).any(overlap) {
            return Err(damaged("two partitions overlap"));
        }
        Ok(Self {
            guid: copy.header.disk_guid,
            sector_size: device.sector_size(),
            disk_size: device.size(),
            entries: copy.header.num_parts,
            partitions,
            copies,
        })
    }

    /// The partition of this role, with its number; none if there is none.
    ///
    /// # Errors
    ///
    /// When there are several: nobody can say which of them is meant.
    pub fn find(&self, role: Role) -> Result<Option<(u32, &Partition)>, TableError> {
        let mut found = self.partitions.iter().filter(|(_, partition)| partition.kind == role.kind());
        match (found.next(), found.next()) {
            (Some((&first, _)), Some((&second, _))) => Err(TableError::Duplicate { role, first, second }),
            (first, _) => Ok(first.map(|(&number, partition)| (number, partition))),
        }
    }

    /// The partition with this unique GUID, with its number.
    #[must_use]
    pub fn by_guid(&self, guid: Uuid) -> Option<(u32, &Partition)> {
        self.partitions.iter().find(|(_, one)| one.guid == guid).map(|(&number, partition)| (number, partition))
    }

    /// Sectors of one array of entries.
    pub(crate) const fn array_sectors(&self) -> u64 {
        (self.entries as u64 * ENTRY_BYTES as u64).div_ceil(self.sector_size.bytes())
    }

    /// What partitions may use of this disk: all between the two copies of the table.
    #[must_use]
    pub fn usable(&self) -> Region {
        let sector = self.sector_size.bytes();
        let start = (2 + self.array_sectors()) * sector;
        let end = (self.disk_size / sector).saturating_sub(1 + self.array_sectors()) * sector;
        Region { start, length: end.saturating_sub(start) }
    }

    /// Bytes that no partition uses at the end of the usable part.
    #[must_use]
    pub(crate) fn free_at_end(&self) -> u64 {
        let used = self.partitions.values().map(|partition| partition.region.end()).max().unwrap_or_default();
        self.usable().end().saturating_sub(used)
    }

    /// Writes both copies, that at the end first, and the protective MBR between them, each flushed before the next: when the copy at
    /// the beginning is whole, everything is.
    /// `site` names the caller, as for [`polis_fault::point`].
    ///
    /// # Errors
    ///
    /// When the disk fails, or when the table does not fit it.
    pub fn write(&self, device: &Device, site: &'static str) -> Result<(), TableError> {
        let unfit = |problem: String| TableError::Unfit { path: device.path().to_owned(), problem };
        if device.size() != self.disk_size || device.sector_size() != self.sector_size {
            return Err(unfit("the disk is not the one that the table was made for".to_owned()));
        }
        let usable = self.usable();
        for (number, partition) in &self.partitions {
            if partition.region.start < usable.start || partition.region.end() > usable.end() || *number > self.entries
            {
                return Err(unfit(format!("partition {number} is not within the usable part of the disk")));
            }
        }
        let lb_size = self.sector_size.of_gpt();
        let sector = self.sector_size.bytes();
        let mut builder = HeaderBuilder::new();
        builder.disk_guid(self.guid).num_parts(self.entries).backup_lba(device.size() / sector - 1);
        let header = |primary: bool| {
            let built = builder.clone().primary(primary).build(lb_size);
            built.map_err(|error| unfit(error.to_string()))
        };
        let (mut beginning, mut end) = (header(true)?, header(false)?);
        polis_fault::point(site, "begin");
        self.write_array(device, end.part_start)?;
        let written = end.write_backup(&mut device.file(), lb_size);
        written.map_err(|error| failed(device, error))?;
        device.sync()?;
        polis_fault::point(site, "end-synced");
        // A disk that firmware and kernel already take for a GPT keeps what else is in its first sector.
        let disk_sectors = u32::try_from(device.size() / sector - 1).unwrap_or(u32::MAX);
        let mbr = ProtectiveMBR::with_lb_size(disk_sectors);
        let written = mbr.update_conservative(&mut device.file());
        written.map_err(|error| failed(device, error))?;
        device.sync()?;
        polis_fault::point(site, "mbr-synced");
        self.write_array(device, beginning.part_start)?;
        let written = beginning.write_primary(&mut device.file(), lb_size);
        written.map_err(|error| failed(device, error))?;
        device.sync()?;
        polis_fault::point(site, "done");
        Ok(())
    }

    /// Writes one array of entries, the unused ones as zeroes.
    fn write_array(&self, device: &Device, first_sector: u64) -> Result<(), TableError> {
        let lb_size = self.sector_size.of_gpt();
        let zeroes = vec![0; usize::try_from(self.entries * ENTRY_BYTES).unwrap_or_default()];
        let mut array = io::Cursor::new(zeroes);
        for (&number, partition) in &self.partitions {
            let sector = self.sector_size.bytes();
            let entry = gpt::partition::Partition {
                part_type_guid: partition.kind.into(),
                part_guid: partition.guid,
                first_lba: partition.region.start / sector,
                last_lba: (partition.region.end() / sector).saturating_sub(1),
                flags: partition.attributes,
                name: partition.name.clone(),
            };
            let position = u64::from(number.saturating_sub(1));
            let written = entry.write_to_device(&mut array, position, 0, lb_size, ENTRY_BYTES);
            written.map_err(|error| failed(device, error))?;
        }
        Ok(device.write_at(first_sector * self.sector_size.bytes(), array.get_ref())?)
    }
}

fn failed(device: &Device, error: impl std::error::Error + Send + Sync + 'static) -> TableError {
    TableError::Write { path: device.path().to_owned(), source: Box::new(error) }
}

/// One copy of a table, as it is on the disk.
struct Copy {
    header: Header,
    entries: BTreeMap<u32, gpt::partition::Partition>,
}

enum Found {
    /// There is no header.
    Absent,
    /// There is one, and this is wrong with it.
    Damaged(String),
    Whole(Copy),
}

impl Copy {
    /// Reads the copy whose header is in sector `at`.
    fn read(device: &Device, at: u64) -> Result<Found, TableError> {
        let sector = device.sector_size();
        let mut bytes = vec![0; usize::try_from(sector.bytes()).unwrap_or_default()];
        if device.size() < 3 * sector.bytes() {
            return Ok(Found::Absent);
        }
        device.read_at(at * sector.bytes(), &mut bytes)?;
        if !bytes.starts_with(b"EFI PART") {
            return Ok(Found::Absent);
        }
        // The decoder looks for a header in the second sector of what it is given.
        let mut window = io::Cursor::new([vec![0; bytes.len()], bytes].concat());
        let header = match gpt::header::read_header_from_arbitrary_device(&mut window, sector.of_gpt()) {
            Ok(header) => header,
            Err(error) => return Ok(Found::Damaged(error.to_string())),
        };
        let sane = header.current_lba == at
            && header.header_size_le == HEADER_BYTES
            && header.part_size == ENTRY_BYTES
            && header.num_parts <= MOST_ENTRIES;
        if !sane {
            return Ok(Found::Damaged("its header is of a form that is not known".to_owned()));
        }
        let length = u64::from(header.num_parts) * u64::from(ENTRY_BYTES);
        let inside = header.part_start.checked_mul(sector.bytes()).and_then(|start| start.checked_add(length));
        if inside.is_none_or(|end| end > device.size()) {
            return Ok(Found::Damaged("its entries are outside of the disk".to_owned()));
        }
        let mut remembering = Remembering { device, position: 0, failed: None };
        match gpt::partition::file_read_partitions(&mut remembering, &header, sector.of_gpt()) {
            Ok(mut entries) => {
                entries.retain(|_, entry| entry.is_used());
                Ok(Found::Whole(Self { header, entries }))
            }
            Err(error) => match remembering.failed {
                // A disk that cannot be read is not a damaged table.
                Some(failure) => Err(failure.into()),
                None => Ok(Found::Damaged(error.to_string())),
            },
        }
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.entries == other.entries
            && self.header.disk_guid == other.header.disk_guid
            && self.header.num_parts == other.header.num_parts
            && (self.header.current_lba, self.header.backup_lba) == (other.header.backup_lba, other.header.current_lba)
    }
}

/// A device as a stream, which keeps apart that it failed from what was read.
struct Remembering<'a> {
    device: &'a Device,
    position: u64,
    failed: Option<DeviceError>,
}

impl Read for Remembering<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Err(error) = self.device.read_at(self.position, bytes) {
            self.failed = Some(error);
            return Err(io::ErrorKind::Other.into());
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl Seek for Remembering<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = match to {
            SeekFrom::Start(offset) => offset,
            SeekFrom::End(offset) => self.device.size().saturating_add_signed(offset),
            SeekFrom::Current(offset) => self.position.saturating_add_signed(offset),
        };
        Ok(self.position)
    }
}

/// Why a table cannot be read, used or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The disk failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No copy is whole.
    #[error(
        "the partition table of {} is damaged: {problem}; nothing was changed: repair it with gdisk, or put the right disk back",
        path.display()
    )]
    Damaged {
        /// The disk.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Two partitions claim the same role.
    #[error(
        "there are two of the {role}, numbers {first} and {second}, and only one can be meant; nothing was changed: delete one of \
         them, or give it another type"
    )]
    Duplicate {
        /// The role.
        role: Role,
        /// Number of one.
        first: u32,
        /// Number of another.
        second: u32,
    },
    /// The table does not belong on this disk.
    #[error("the partition table does not fit {}: {problem}; nothing was changed", path.display())]
    Unfit {
        /// The disk.
        path: std::path::PathBuf,
        /// Why.
        problem: String,
    },
    /// It could not be written.
    #[error("cannot write the partition table of {}", path.display())]
    Write {
        /// The disk.
        path: std::path::PathBuf,
        /// What failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
}
