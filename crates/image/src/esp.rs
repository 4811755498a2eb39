//! The EFI system partition: FAT32, with the same bytes for the same files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;

use hadris_fat::format::{FatFormatOptions, FatTypeSelection, FatVolumeFormatter};
use hadris_fat::sync::{FatDir, FatVolume, FatVolumeBuilder, FatVolumeWriteExt as _};
use hadris_fat::time::EpochTimeProvider;
use polis_disks::Region;

/// Sectors of 512 bytes in a cluster: 4 KiB, what disks write at once.
const SECTORS_PER_CLUSTER: u8 = 8;

/// Stamps of files: the beginning of FAT's time.
static CLOCK: EpochTimeProvider = EpochTimeProvider;

/// Files of an EFI system partition, by their paths without a slash in front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EspFiles {
    files: BTreeMap<String, Vec<u8>>,
}

/// Why there is no EFI system partition.
#[derive(Debug, thiserror::Error)]
pub enum EspError {
    /// It cannot be formatted.
    #[error("it could not be formatted as FAT32")]
    Format(#[source] hadris_fat::Error),
    /// A file cannot be written to it.
    #[error("/{path} could not be written to it")]
    File {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: hadris_fat::Error,
    },
    /// It cannot be completed.
    #[error("it could not be completed")]
    Complete(#[source] hadris_fat::Error),
}

impl EspFiles {
    /// Adds a file. What had this path is replaced.
    pub fn add(&mut self, path: &str, content: Vec<u8>) {
        self.files.insert(path.to_owned(), content);
    }

    /// Makes the file system in this part of a file.
    ///
    /// # Errors
    ///
    /// When it is too small, or the file cannot be written.
    pub fn write(&self, file: &File, region: Region, volume_id: u32) -> Result<(), EspError> {
        let options = FatFormatOptions::new(region.length)
            .fat_type(FatTypeSelection::Fat32)
            .sectors_per_cluster(SECTORS_PER_CLUSTER)
            .hidden_sectors(u32::try_from(region.start / 512).unwrap_or(u32::MAX))
            // A label would get the time of day.
            .volume_id(volume_id);
        drop(FatVolumeFormatter::format(Window::new(file, region), options).map_err(EspError::Format)?);
        // What formats takes the time of day; what opens can be given another clock.
        let volume =
            FatVolumeBuilder::new(Window::new(file, region)).time_provider(&CLOCK).open().map_err(EspError::Format)?;
        for (path, content) in &self.files {
            write_file(&volume, path, content).map_err(|source| EspError::File { path: path.clone(), source })?;
        }
        volume.sync().map_err(EspError::Complete)
    }
}

fn write_file(volume: &FatVolume<Window<'_>>, path: &str, content: &[u8]) -> Result<(), hadris_fat::Error> {
    let mut directory = volume.root_dir();
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    for part in directories.split('/').filter(|part| !part.is_empty()) {
        directory = open_or_make(volume, &directory, part)?;
    }
    let entry = volume.create_file(&directory, name)?;
    let mut writer = volume.write_file(&entry)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = writer.write(rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    writer.finish()
}

fn open_or_make<'volume, 'file>(
    volume: &'volume FatVolume<Window<'file>>,
    parent: &FatDir<'volume, Window<'file>>,
    name: &str,
) -> Result<FatDir<'volume, Window<'file>>, hadris_fat::Error> {
    match parent.find(name)? {
        Some(entry) => volume.open_dir_entry(&entry),
        None => volume.create_dir(parent, name),
    }
}

/// A part of a file as a file of its own.
struct Window<'a> {
    file: &'a File,
    region: Region,
    position: u64,
}

impl<'a> Window<'a> {
    fn new(file: &'a File, region: Region) -> Self {
        Self { file, region, position: 0 }
    }

    fn room(&self, length: usize) -> usize {
        let left = self.region.length.saturating_sub(self.position);
        usize::try_from(left).map_or(length, |left| left.min(length))
    }
}

impl Read for Window<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = self.room(bytes.len());
        let read = self.file.read_at(&mut bytes[..room], self.region.start + self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for Window<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room(bytes.len());
        let written = self.file.write_at(&bytes[..room], self.region.start + self.position)?;
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Window<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.region.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use hadris_fat::sync::FatVolumeReadExt as _;
    use polis_disks::MIB;

    use super::*;

    const REGION: Region = Region { start: MIB, length: 300 * MIB };

    fn made(files: &EspFiles) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(REGION.end() + MIB).unwrap();
        files.write(&file, REGION, 0x1234_5678).unwrap();
        file
    }

    fn files() -> EspFiles {
        let mut files = EspFiles::default();
        files.add("EFI/BOOT/BOOTX64.EFI", vec![1; 100_000]);
        files.add("loader/loader.conf", b"timeout 0\n".to_vec());
        files.add("loader/entries/polis-00000001-a.conf", b"title\n".to_vec());
        files.add("empty", Vec::new());
        files
    }

    #[test]
    fn what_was_written_is_there_and_nothing_outside_is_touched() {
        let file = made(&files());
        let volume = FatVolume::open(Window::new(&file, REGION)).unwrap();
        for (path, content) in &files().files {
            let mut directory = volume.root_dir();
            let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
            for part in directories.split('/').filter(|part| !part.is_empty()) {
                let entry = directory.find(part).unwrap().unwrap();
                directory = volume.open_dir_entry(&entry).unwrap();
            }
            let entry = directory.find(name).unwrap().unwrap();
            assert_eq!(entry.name(), name);
            let mut found = Vec::new();
            let mut reader = volume.read_file(&entry).unwrap();
            let mut buffer = [0; 4096];
            loop {
                match reader.read(&mut buffer).unwrap() {
                    0 => break,
                    read => found.extend_from_slice(&buffer[..read]),
                }
            }
            assert_eq!(&found, content, "{path}");
        }
        let outside = |start: u64| {
            let mut bytes = vec![0xff; usize::try_from(MIB).unwrap()];
            file.read_exact_at(&mut bytes, start).unwrap();
            bytes.iter().all(|byte| *byte == 0)
        };
        assert!(outside(0) && outside(REGION.end()));
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let all = |file: File| {
            let mut bytes = Vec::new();
            let mut file = &file;
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let one = all(made(&files()));
        assert!(one == all(made(&files())), "two runs differ");
        let mut more = files();
        more.add("more", vec![2]);
        assert!(one != all(made(&more)));
    }

    #[test]
    fn a_partition_that_is_too_small_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let mut files = EspFiles::default();
        files.add("large", vec![1; 1 << 20]);
        let error = files.write(&file, Region { start: 0, length: MIB }, 1).unwrap_err();
        assert!(matches!(error, EspError::Format(_)), "{error}");
    }
}
