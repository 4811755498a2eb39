//! [`Device`]: an open disk, partition or image file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::sectors::SectorSize;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A whole disk, a partition, or what device mapper makes of them.
    Block {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A file with the content of a disk.
    Image,
}

/// An open disk, partition or image file.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    file: File,
    kind: DeviceKind,
    size: u64,
    sector_size: SectorSize,
}

impl Device {
    /// Opens a device for reading.
    ///
    /// # Errors
    ///
    /// See [`DeviceError`].
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a device for reading and writing.
    ///
    /// # Errors
    ///
    /// See [`DeviceError`].
    pub fn open_writable(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens a device for writing past the cache of the kernel, which is several times faster for much that is written in
    /// order: what is written must be aligned to 4096 bytes, in memory too.
    ///
    /// # Errors
    ///
    /// See [`DeviceError`].
    pub fn open_direct(path: &Path) -> Result<Self, DeviceError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
        Self::open_with(path, &options)
    }

    /// Opens a block device for reading and writing as its only user: nothing else can mount or claim it meanwhile.
    ///
    /// # Errors
    ///
    /// Also when somebody uses it, by mount, by device mapper, or in the same way ([`DeviceError::InUse`]). An image file has no
    /// such lock.
    pub fn open_exclusive(path: &Path) -> Result<Self, DeviceError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        // On anything but a block device the flag has no meaning without O_CREAT.
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        Self::open_with(path, &options)
    }

    fn open_with(path: &Path, options: &OpenOptions) -> Result<Self, DeviceError> {
        let failed = |source| DeviceError::Access { path: path.to_owned(), source };
        let file = options.open(path).map_err(|source| {
            if source.kind() == io::ErrorKind::ResourceBusy {
                DeviceError::InUse { path: path.to_owned() }
            } else {
                failed(source)
            }
        })?;
        let metadata = file.metadata().map_err(failed)?;
        let (kind, sector_size) = if metadata.file_type().is_block_device() {
            let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
            let bytes = rustix::fs::ioctl_blksszget(&file).map_err(|cause| failed(cause.into()))?;
            let sector_size = SectorSize::from_bytes(u64::from(bytes))
                .ok_or_else(|| DeviceError::SectorSize { path: path.to_owned(), bytes })?;
            (DeviceKind::Block { major, minor }, sector_size)
        } else if metadata.is_file() {
            (DeviceKind::Image, SectorSize::Bytes512)
        } else {
            return Err(DeviceError::NotADevice { path: path.to_owned() });
        };
        // The length of a block device is where its end is; its metadata say nothing of it.
        let size = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, kind, size, sector_size })
    }

    /// The path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Size in bytes, when it was opened.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Size of its logical sectors; of an image file, 512 bytes.
    #[must_use]
    pub const fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    /// Reads exactly as many bytes as `bytes` has.
    ///
    /// # Errors
    ///
    /// When the device does not give them.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(bytes));
        read.map_err(|source| DeviceError::Read { path: self.path.clone(), offset, source })
    }

    /// Writes all of `bytes`, not yet durably.
    ///
    /// # Errors
    ///
    /// When the device does not take them.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut file = &self.file;
        let written = file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(bytes));
        written.map_err(|source| DeviceError::Write { path: self.path.clone(), offset, source })
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    ///
    /// When the device does not confirm it.
    pub fn sync(&self) -> Result<(), DeviceError> {
        self.file.sync_all().map_err(|source| DeviceError::Sync { path: self.path.clone(), source })
    }

    /// The open file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It cannot be opened or asked.
    #[error("cannot use the device {}", path.display())]
    Access {
        /// The device.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody uses it.
    #[error("the device {} is in use: it is mounted, or part of something else; nothing was changed", path.display())]
    InUse {
        /// The device.
        path: PathBuf,
    },
    /// It is a directory, a terminal or the like.
    #[error("{} is neither a block device nor an image file", path.display())]
    NotADevice {
        /// What was given.
        path: PathBuf,
    },
    /// Its sectors are of a size that no partition table is made for.
    #[error("the device {} has sectors of {bytes} bytes, and only those of 512 and 4096 bytes can be used", path.display())]
    SectorSize {
        /// The device.
        path: PathBuf,
        /// Bytes of a sector.
        bytes: u32,
    },
    /// It cannot be read.
    #[error("cannot read {} at byte {offset}", path.display())]
    Read {
        /// The device.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {} at byte {offset}", path.display())]
    Write {
        /// The device.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It does not confirm what was written.
    #[error("cannot flush what was written to {}", path.display())]
    Sync {
        /// The device.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

impl DeviceError {
    /// What the system said, if it was asked.
    #[must_use]
    pub const fn cause(&self) -> Option<&io::Error> {
        match self {
            Self::Access { source, .. }
            | Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::Sync { source, .. } => Some(source),
            Self::InUse { .. } | Self::NotADevice { .. } | Self::SectorSize { .. } => None,
        }
    }
}
