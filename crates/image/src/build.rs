//! Building what was planned.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use polis_disks::{
    DEFAULT_ESP_SIZE, Device, DeviceError, DiskLayout, Guids, LayoutError, LayoutRequest, MIB, SectorSize, TableError,
};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::cpio::{CpioError, archive};
use crate::esp::{EspError, EspFiles};
use crate::inputs::{Compression, SigningKeys};
use crate::plan::ImagePlan;
use crate::slots::{ENTRY_DIRECTORY, Entry, IMAGE_DIRECTORY, NewImage, Slots};
use crate::tool::{Tool, ToolError};
use crate::uki::{Sections, UkiError, unified_kernel_image};

/// Longest unified kernel image in bytes. The EFI system partition has room for several of this size, and firmware takes about a
/// second for each mebibyte where it is emulated.
pub const LONGEST_IMAGE: u64 = 48 * MIB;

/// Size of the data partition of an image, in bytes: more than anything looks at to know what is on it. It grows at the first start.
const DATA_SIZE: u64 = 16 * MIB;

/// What the boot loader is told: start at once, and find nothing by itself. With a menu, an editor or other systems on the disk,
/// whoever stands in front of the machine could start something else.
const LOADER_CONFIGURATION: &str =
    "timeout 0\neditor no\nauto-entries no\nauto-firmware no\nsecure-boot-enroll off\nrandom-seed-mode off\n";

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Size of the archive of the initramfs before compression, in bytes.
    pub archive_size: u64,
    /// Size of the unified kernel image, in bytes.
    pub image_size: u64,
    /// Its checksum, under which the slots know it.
    pub image_sha256: [u8; 32],
    /// Bytes of the disk image that are not a hole.
    pub content_size: u64,
    /// Size of the disk image with its holes, in bytes.
    pub disk_size: u64,
}

/// Why there is no image. Nothing was written in the place of the image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An input cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The input.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No archive.
    #[error("the initramfs could not be put together")]
    Archive(#[from] CpioError),
    /// A program of other people.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// No unified kernel image.
    #[error("the unified kernel image could not be put together")]
    Image(#[from] UkiError),
    /// It is too long.
    #[error("the unified kernel image has {size} bytes, and at most {LONGEST_IMAGE} are allowed")]
    TooLong {
        /// Its size in bytes.
        size: u64,
    },
    /// No layout of the disk.
    #[error("the disk could not be laid out")]
    Layout(#[from] LayoutError),
    /// No partition table.
    #[error("the partition table could not be written")]
    Table(#[from] TableError),
    /// The file could not be used as a disk.
    #[error("the image could not be written")]
    Device(#[from] DeviceError),
    /// No EFI system partition.
    #[error("the EFI system partition could not be made")]
    Esp(#[from] EspError),
    /// There is something in its place.
    #[error("{} is there already, and nothing is replaced without being told to", path.display())]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// The result could not be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The place.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ImagePlan {
    /// Builds the disk image and puts it into `output`, whole or not at all; beside it, if asked for, the unified kernel image alone,
    /// which is what an update needs.
    ///
    /// # Errors
    ///
    /// When something that the plan names cannot be read, or the result cannot be written. What is in the place of the output stays,
    /// unless it is to be replaced and the new one is whole.
    pub fn build(&self, output: &Path, image_output: Option<&Path>, replace: bool) -> Result<Built, BuildError> {
        for path in [Some(output), image_output].into_iter().flatten() {
            if !replace && path.symlink_metadata().is_ok() {
                return Err(BuildError::Exists { path: path.to_owned() });
            }
        }
        let (archive_size, image) = self.unified_kernel_image()?;
        let loader = self.sign(read(&self.loader)?)?;
        let image_sha256: [u8; 32] = Sha256::digest(&image).into();
        let (image_size, entry) =
            (image.len() as u64, Slots::first(&NewImage { sha256: image_sha256, version: self.version.clone() }));
        if let Some(path) = image_output {
            put(path, replace, |file| file.write_all(&image).map_err(|source| cannot_write(path, source)))?;
        }
        let files = self.esp(loader, image, &entry)?;
        let content_size = put(output, replace, |file| write_disk(file, output, &files, image_sha256))?;
        let disk_size = std::fs::metadata(output).map_err(|source| cannot_write(output, source))?.len();
        Ok(Built { archive_size, image_size, image_sha256, content_size, disk_size })
    }

    /// The initramfs alone, compressed as planned: for a machine that is started without firmware.
    ///
    /// # Errors
    ///
    /// When something that the plan names cannot be read, or the tool that compresses does not.
    pub fn initramfs(&self) -> Result<Vec<u8>, BuildError> {
        self.compressed(archive(&self.tree())?)
    }

    fn compressed(&self, archive: Vec<u8>) -> Result<Vec<u8>, BuildError> {
        match self.compression {
            // One thread and one level, so that the result depends on the program's version alone: with more threads it is another.
            Compression::Zstd => Ok(Tool::Zstd.run(&["-19", "-T1", "-q", "-c", "-"].map(OsString::from), archive)?),
            Compression::None => Ok(archive),
        }
    }

    /// The unified kernel image, and the size of the archive in it before compression.
    fn unified_kernel_image(&self) -> Result<(u64, Vec<u8>), BuildError> {
        let archive = archive(&self.tree())?;
        let archive_size = archive.len() as u64;
        let initramfs = self.compressed(archive)?;
        let kernel = read(&self.kernel)?;
        let image = unified_kernel_image(
            &read(&self.stub)?,
            &Sections {
                os_release: &self.os_release(),
                command_line: &self.command_line,
                kernel_release: &self.kernel_release,
                initramfs: &initramfs,
                kernel: &kernel,
            },
        )?;
        let image = self.sign(image)?;
        let size = image.len() as u64;
        if size <= LONGEST_IMAGE { Ok((archive_size, image)) } else { Err(BuildError::TooLong { size }) }
    }

    fn esp(&self, loader: Vec<u8>, image: Vec<u8>, entry: &Entry) -> Result<EspFiles, BuildError> {
        let mut files = EspFiles::default();
        files.add("EFI/BOOT/BOOTX64.EFI", loader);
        files.add("loader/loader.conf", LOADER_CONFIGURATION.into());
        files.add(&format!("{ENTRY_DIRECTORY}/{}", entry.file_name()), entry.text().into());
        files.add(&format!("{IMAGE_DIRECTORY}/{}", entry.image), image);
        for (path, source) in &self.esp_files {
            files.add(path, read(source)?);
        }
        Ok(files)
    }

    /// Signs an EFI program, if there are keys.
    fn sign(&self, program: Vec<u8>) -> Result<Vec<u8>, BuildError> {
        let Some(SigningKeys { key, certificate }) = &self.signing else { return Ok(program) };
        let directory =
            tempfile::tempdir().map_err(|source| cannot_write(Path::new("a temporary directory"), source))?;
        let (unsigned, signed) = (directory.path().join("unsigned.efi"), directory.path().join("signed.efi"));
        put(&unsigned, false, |file| file.write_all(&program).map_err(|source| cannot_write(&unsigned, source)))?;
        let mut arguments: Vec<OsString> = vec!["--key".into(), key.into(), "--cert".into(), certificate.into()];
        arguments.extend(["--output".into(), signed.clone().into(), unsigned.clone().into()]);
        Tool::Sbsign.run(&arguments, Vec::new())?;
        read(&signed)
    }
}

/// Writes partition table and EFI system partition. Gives the bytes that are not a hole.
fn write_disk(file: &mut NamedTempFile, output: &Path, files: &EspFiles, seed: [u8; 32]) -> Result<(), BuildError> {
    let request = LayoutRequest {
        disk_size: 2 * MIB + DEFAULT_ESP_SIZE + DATA_SIZE,
        sector_size: SectorSize::Bytes512,
        esp_size: DEFAULT_ESP_SIZE,
        least_data_size: DATA_SIZE,
        guids: Guids::from_seed(&seed),
    };
    let layout = DiskLayout::plan(&request)?;
    file.as_file().set_len(request.disk_size).map_err(|source| cannot_write(output, source))?;
    layout.write(&Device::open_writable(file.path())?)?;
    let [one, two, three, four, ..] = seed;
    files.write(file.as_file(), layout.esp, u32::from_le_bytes([one, two, three, four]))?;
    Ok(())
}

/// Makes a file in one step: whole and synced, or not there. Gives the bytes of it that are not a hole.
fn put(
    path: &Path,
    replace: bool,
    write: impl FnOnce(&mut NamedTempFile) -> Result<(), BuildError>,
) -> Result<u64, BuildError> {
    let failed = |source| cannot_write(path, source);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".polis-")
        .suffix(".new")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(failed)?;
    write(&mut file)?;
    file.as_file().sync_all().map_err(failed)?;
    // Blocks of stat(2) are of 512 bytes, whatever the file system's are.
    let content_size = file.as_file().metadata().map_err(failed)?.blocks() * 512;
    match replace {
        true => file.persist(path).map_err(|error| failed(error.error))?,
        false => file.persist_noclobber(path).map_err(|error| failed(error.error))?,
    };
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    Ok(content_size)
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(|source| BuildError::Read { path: path.to_owned(), source })
}

fn cannot_write(path: &Path, source: io::Error) -> BuildError {
    BuildError::Write { path: path.to_owned(), source }
}
