//! [`BootSlots`]: carries out on the EFI system partition what `polis_image::slots` plans. Calls block.

use std::io;
use std::path::Path;
use std::sync::Arc;

use polis_fault::point;
use polis_image::slots::{
    ENTRY_DIRECTORY, Entry, IMAGE_DIRECTORY, ImageName, MAX_ENTRY_LENGTH, NewImage, PlanRefused, Room, Slots, Standing,
    Step,
};
use polis_storage::{Disk, DiskError, DiskPath, FILE_MODE, Metadata, durable};

use crate::digest::Digest;
use crate::fetch::Fetched;
use crate::running::SelectedEntry;

/// Room that is left beside a new image, in bytes: for entries, for the journal of the node, and for directories that grow.
const MARGIN: u64 = 1024 * 1024;

/// What all entries of ours begin with.
const OURS: &str = "polis-";

/// Says how many bytes are free on the file system that has this path.
pub type FreeSpace = Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>;

/// The two slots of one EFI system partition.
#[derive(Clone)]
pub struct BootSlots {
    disk: Arc<dyn Disk>,
    entries: DiskPath,
    images: DiskPath,
    esp: DiskPath,
    free_space: FreeSpace,
}

/// What an installation has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The image is in the other slot and is tried at the next start.
    ToBeTried(Entry),
    /// It was there already, and is what starts next.
    AlreadyNext(Entry),
}

impl Installed {
    /// The entry that starts next.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        match self {
            Self::ToBeTried(entry) | Self::AlreadyNext(entry) => entry,
        }
    }
}

/// Why the slots were not changed, or not to the end. Whatever it is, the machine still starts from the image that was good.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// It would not be safe.
    #[error(transparent)]
    Refused(#[from] PlanRefused),
    /// There is no room.
    #[error(
        "the EFI system partition has {free} bytes free where {needed} are needed, and what may be replaced does not make room enough"
    )]
    NoRoom {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The room is not known.
    #[error("it is not known how much room the EFI system partition has")]
    FreeSpace(#[source] io::Error),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// What was written is not what is read.
    #[error("the image that was written to {path} is another one when it is read back: the disk is damaged")]
    ReadBack {
        /// The file.
        path: String,
    },
    /// There is no next entry to start from, or its image is not whole.
    #[error("there is no whole image that would start next")]
    NoNext,
}

impl BootSlots {
    /// The slots of the EFI system partition that is mounted at `esp` on this disk.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, esp: DiskPath) -> Self {
        Self::with_free_space(disk, esp, Arc::new(free_space))
    }

    /// As [`BootSlots::new`], with another way to know how much room there is.
    #[must_use]
    pub fn with_free_space(disk: Arc<dyn Disk>, esp: DiskPath, free_space: FreeSpace) -> Self {
        let below = |path: &str| {
            path.split('/').fold(esp.clone(), |parent, name| parent.child(name).expect("a constant, valid name"))
        };
        Self { entries: below(ENTRY_DIRECTORY), images: below(IMAGE_DIRECTORY), esp, disk, free_space }
    }

    /// How the slots are.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn read(&self) -> Result<Slots, SlotsError> {
        let mut entries = Vec::new();
        for name in self.list(&self.entries)? {
            // Nobody but the boot loader has to read what is not ours.
            if !name.to_ascii_lowercase().starts_with(OURS) {
                continue;
            }
            let text = match self.disk.read(&child(&self.entries, &name)?, MAX_ENTRY_LENGTH) {
                Ok(text) => text,
                // Ours are shorter: the slots call an empty one damaged as they would this.
                Err(error) if error.is_too_long() => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            entries.push((name, text));
        }
        let images = self.list(&self.images)?;
        let entries = entries.iter().map(|(name, text)| (name.as_str(), text.as_slice()));
        Ok(Slots::read(entries, images.iter().map(String::as_str)))
    }

    /// Installs an image in the slot that does not run, to be tried once at the next start. The running image must be good.
    ///
    /// # Errors
    ///
    /// When that would not be safe, or there is no room, or the partition cannot be written. The machine starts as before.
    pub fn install(&self, selected: &SelectedEntry, new: &Fetched) -> Result<Installed, SlotsError> {
        let slots = self.read()?;
        let running = running(&slots, selected);
        if let Some(next) = slots.next()
            && next.sha256 == new.digest.0
            && !matches!(next.standing, Standing::Spent { .. })
            && self.is_whole(next)?
        {
            return Ok(Installed::AlreadyNext(next.clone()));
        }
        let image = NewImage { sha256: new.digest.0, version: new.version.clone() };
        let enough = slots.plan_installation(running, &image, Room::Enough)?;
        let replaced = self.removed_bytes(&enough)?;
        let free = (self.free_space)(&self.disk.full_path(&self.esp)).map_err(SlotsError::FreeSpace)?;
        let needed = new.image.len() as u64 + MARGIN;
        let steps = if free >= needed {
            enough
        } else if free + replaced >= needed {
            slots.plan_installation(running, &image, Room::AfterRemoval)?
        } else {
            return Err(SlotsError::NoRoom { needed, free });
        };
        self.execute(&steps, &new.image)?;
        let written = steps.into_iter().find_map(|step| match step {
            Step::WriteEntry(entry) => Some(entry),
            Step::WriteImage(_) | Step::RemoveEntry { .. } | Step::RemoveImage(_) | Step::Sync => None,
        });
        written.map(Installed::ToBeTried).ok_or(SlotsError::NoNext)
    }

    /// Marks the image that runs as good, so that it is started from now on. Returns whether it was not yet.
    ///
    /// # Errors
    ///
    /// When it is not known which one runs, or the partition cannot be written.
    pub fn mark_good(&self, selected: &SelectedEntry) -> Result<bool, SlotsError> {
        let slots = self.read()?;
        let steps = slots.plan_good(running(&slots, selected))?;
        self.execute(&steps, &[])?;
        Ok(!steps.is_empty())
    }

    /// Makes the other slot the one that is tried at the next start.
    ///
    /// # Errors
    ///
    /// When it is not good, or the partition cannot be written.
    pub fn roll_back(&self, selected: &SelectedEntry) -> Result<(), SlotsError> {
        let slots = self.read()?;
        let steps = slots.plan_rollback(running(&slots, selected))?;
        self.execute(&steps, &[])
    }

    /// The image that starts next, with its entry.
    ///
    /// # Errors
    ///
    /// When there is none that is whole.
    pub fn next_image(&self) -> Result<(Entry, Vec<u8>), SlotsError> {
        let slots = self.read()?;
        let next = slots.next().ok_or(SlotsError::NoNext)?;
        let image = self.read_image(&next.image)?;
        if Digest::of(&image).0 == next.sha256 { Ok((next.clone(), image)) } else { Err(SlotsError::NoNext) }
    }

    fn is_whole(&self, entry: &Entry) -> Result<bool, SlotsError> {
        Ok(Digest::of(&self.read_image(&entry.image)?).0 == entry.sha256)
    }

    fn read_image(&self, name: &ImageName) -> Result<Vec<u8>, SlotsError> {
        let limit = usize::try_from(polis_image::LONGEST_IMAGE).unwrap_or(usize::MAX);
        Ok(self.disk.read(&child(&self.images, &name.to_string())?, limit)?)
    }

    fn execute(&self, steps: &[Step], image: &[u8]) -> Result<(), SlotsError> {
        steps.iter().try_for_each(|step| match step {
            Step::WriteImage(name) => self.write_image(name, image),
            Step::WriteEntry(entry) => self.write_entry(entry),
            Step::RemoveEntry { name } => self.remove("slots/remove-entry", &self.entries, name),
            Step::RemoveImage(name) => self.remove("slots/remove-image", &self.images, &name.to_string()),
            Step::Sync => {
                durable::settle(&*self.disk, "slots/images", &self.images)?;
                Ok(durable::settle(&*self.disk, "slots/entries", &self.entries)?)
            }
        })
    }

    fn write_image(&self, name: &ImageName, image: &[u8]) -> Result<(), SlotsError> {
        durable::create_directories(&*self.disk, "slots/image-directory", &self.images, polis_storage::DIRECTORY_MODE)?;
        let path = child(&self.images, &name.to_string())?;
        self.write_new("slots/image", &self.images, &path, image)?;
        if self.read_image(name)? == image {
            return Ok(());
        }
        // No entry names it.
        let _ = self.disk.remove_file(&path);
        Err(SlotsError::ReadBack { path: self.disk.full_path(&path).display().to_string() })
    }

    fn write_entry(&self, entry: &Entry) -> Result<(), SlotsError> {
        let path = child(&self.entries, &entry.file_name())?;
        let text = entry.text();
        match self.write_new("slots/entry", &self.entries, &path, text.as_bytes()) {
            // What has this name and is not the entry is one that was torn, by a power cut, while it was being written.
            Err(error) if error.already_exists() => {
                durable::remove(&*self.disk, "slots/torn-entry", &path)?;
                Ok(self.write_new("slots/entry", &self.entries, &path, text.as_bytes())?)
            }
            written => Ok(written?),
        }
    }

    /// Writes a file under a name that nothing has, and makes it durable. There is no rename: on FAT that is not atomic, and what has
    /// both names after a power cut is one chain of clusters with two owners. A torn file is found out by its content.
    fn write_new(
        &self,
        site: &'static str,
        directory: &DiskPath,
        path: &DiskPath,
        content: &[u8],
    ) -> Result<(), DiskError> {
        point(site, "begin");
        let written = self.disk.create_exclusive(path, FILE_MODE, content).and_then(|()| {
            point(site, "created");
            self.disk.sync_file(site, path)?;
            point(site, "synced");
            self.disk.sync_directory(site, directory)
        });
        match written {
            Ok(()) => {
                point(site, "done");
                Ok(())
            }
            Err(error) if error.already_exists() => Err(error),
            Err(error) => {
                // The first error is the one that matters.
                let _ = self.disk.remove_file(path);
                Err(error)
            }
        }
    }

    fn remove(&self, site: &'static str, directory: &DiskPath, name: &str) -> Result<(), SlotsError> {
        Ok(durable::remove(&*self.disk, site, &child(directory, name)?)?)
    }

    /// Bytes of the images that these steps remove.
    fn removed_bytes(&self, steps: &[Step]) -> Result<u64, SlotsError> {
        let mut sum = 0;
        for step in steps {
            match step {
                Step::RemoveImage(name) => {
                    if let Some(Metadata::File { length, .. }) =
                        self.disk.metadata(&child(&self.images, &name.to_string())?)?
                    {
                        sum += length;
                    }
                }
                Step::WriteImage(_) | Step::WriteEntry(_) | Step::RemoveEntry { .. } | Step::Sync => {}
            }
        }
        Ok(sum)
    }

    fn list(&self, directory: &DiskPath) -> Result<Vec<String>, DiskError> {
        match self.disk.list(directory) {
            Err(error) if error.is_absent() => Ok(Vec::new()),
            listed => listed,
        }
    }
}

/// The entry of the image that runs.
pub(crate) fn running<'a>(slots: &'a Slots, selected: &SelectedEntry) -> Option<&'a Entry> {
    slots.running(selected.0.as_deref()?)
}

/// The path of a name that a directory listing gave, or that was made of letters and digits.
fn child(directory: &DiskPath, name: &str) -> Result<DiskPath, DiskError> {
    directory.child(name).map_err(|error| DiskError {
        action: polis_storage::Action::Examine,
        path: name.into(),
        source: io::Error::other(error),
    })
}

fn free_space(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail * space.f_frsize)
}
