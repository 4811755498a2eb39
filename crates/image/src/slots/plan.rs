//! What has to be written, in which order, so that a power cut at any point leaves the last good slot to start from.

use std::fmt;

use super::{ENTRY_DIRECTORY, Entry, IMAGE_DIRECTORY, ImageName, MAX_GENERATION, Slot, Slots, Standing, TRIES};

/// One step of a plan. Each one is repeated without harm: what is to be removed may be gone, and what is to be written may be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes the new image under this name, syncs it, reads it back and compares the checksum.
    WriteImage(ImageName),
    /// Writes this entry and syncs it.
    WriteEntry(Entry),
    /// Removes an entry.
    RemoveEntry {
        /// Name of its file in [`ENTRY_DIRECTORY`].
        name: String,
    },
    /// Removes an image.
    RemoveImage(ImageName),
    /// Everything before this is durable before anything after it: sync of the whole file system.
    Sync,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteImage(image) => write!(formatter, "write {IMAGE_DIRECTORY}/{image}, and read it back"),
            Self::WriteEntry(entry) => write!(formatter, "write {ENTRY_DIRECTORY}/{}", entry.file_name()),
            Self::RemoveEntry { name } => write!(formatter, "remove {ENTRY_DIRECTORY}/{name}"),
            Self::RemoveImage(image) => write!(formatter, "remove {IMAGE_DIRECTORY}/{image}"),
            Self::Sync => formatter.write_str("sync"),
        }
    }
}

/// An image that is to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// Its checksum.
    pub sha256: [u8; 32],
    /// Version of the Polis in it.
    pub version: String,
}

/// Whether the ESP has room for the new image beside what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has: the image that is replaced stays until the new one is whole.
    Enough,
    /// Only in place of the image that is replaced.
    AfterRemoval,
}

/// Why there is no plan. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefused {
    /// The image that runs is that of no slot.
    #[error("it is not known which slot this machine runs from, so none can be replaced safely")]
    RunningUnknown,
    /// An entry cannot be read.
    #[error("the entry {name} of the boot loader cannot be read, so it is not known what may be replaced: {error}")]
    Damaged {
        /// Name of its file.
        name: String,
        /// Why.
        error: super::EntryError,
    },
    /// The image that runs has not proven itself, so the other one is what the machine falls back to.
    #[error(
        "slot {slot}, from which this machine runs, is still on trial, and what it falls back to must not be replaced"
    )]
    OnTrial {
        /// The slot that runs.
        slot: Slot,
    },
    /// There is no good image in the other slot.
    #[error("slot {slot} holds no image that is known to be good")]
    OtherNotGood {
        /// The slot that does not run.
        slot: Slot,
    },
    /// All numbers are used up.
    #[error("the generations of images are used up at {MAX_GENERATION}")]
    NoGeneration,
}

impl Slots {
    /// The entry of a disk that has just been made: good, as there is nothing to fall back to.
    #[must_use]
    pub fn first(new: &NewImage) -> Entry {
        let image = ImageName { slot: Slot::A, generation: 1 };
        Entry {
            generation: 1,
            slot: Slot::A,
            standing: Standing::Good,
            image,
            sha256: new.sha256,
            version: version(new),
        }
    }

    /// Installs an image in the slot that does not run, to be tried at the next start. `running` is what [`Slots::running`] found.
    ///
    /// # Errors
    ///
    /// When the last good image would not be certain to stay.
    pub fn plan_installation(
        &self,
        running: Option<&Entry>,
        new: &NewImage,
        room: Room,
    ) -> Result<Vec<Step>, PlanRefused> {
        let running = running.ok_or(PlanRefused::RunningUnknown)?;
        if running.standing != Standing::Good {
            return Err(PlanRefused::OnTrial { slot: running.slot });
        }
        let (slot, generation) = (running.slot.other(), self.new_generation()?);
        let image = ImageName { slot, generation };
        let entry = Entry {
            generation,
            slot,
            standing: Standing::OnTrial { left: TRIES, done: 0 },
            image,
            sha256: new.sha256,
            version: version(new),
        };
        let mut steps = Vec::new();
        // First, as the loader may make more of a damaged entry than we do.
        remove_entries(&mut steps, self.damaged.iter().map(|damaged| damaged.name.clone()));
        let write = [Step::WriteImage(image), Step::Sync, Step::WriteEntry(entry), Step::Sync];
        if room == Room::Enough {
            steps.extend(write.clone());
        }
        let replaced = self.entries.iter().chain(&self.superseded).filter(|entry| *entry != running);
        remove_entries(&mut steps, replaced.map(Entry::file_name));
        remove_images(&mut steps, self.images.iter().filter(|image| **image != running.image));
        if room == Room::AfterRemoval {
            steps.extend(write);
        }
        Ok(steps)
    }

    /// Marks the image that runs as good. No steps when it is.
    ///
    /// # Errors
    ///
    /// When it is not known which one runs.
    pub fn plan_good(&self, running: Option<&Entry>) -> Result<Vec<Step>, PlanRefused> {
        // A damaged entry is no reason not to trust what runs.
        let running = running.ok_or(PlanRefused::RunningUnknown)?;
        if running.standing == Standing::Good {
            return Ok(Vec::new());
        }
        let good = Entry { standing: Standing::Good, ..running.clone() };
        let remove = Step::RemoveEntry { name: running.file_name() };
        Ok(vec![Step::WriteEntry(good), Step::Sync, remove, Step::Sync])
    }

    /// Makes the other slot, which must be good, the one that is tried next. No steps when it starts next anyway.
    ///
    /// # Errors
    ///
    /// When it is not good, or it is not known which one runs.
    pub fn plan_rollback(&self, running: Option<&Entry>) -> Result<Vec<Step>, PlanRefused> {
        let running = running.ok_or(PlanRefused::RunningUnknown)?;
        if let Some(damaged) = self.damaged.first() {
            return Err(PlanRefused::Damaged { name: damaged.name.clone(), error: damaged.error });
        }
        let slot = running.slot.other();
        let other =
            self.of(slot).filter(|entry| entry.standing == Standing::Good).ok_or(PlanRefused::OtherNotGood { slot })?;
        if self.next() == Some(other) {
            return Ok(Vec::new());
        }
        // Whoever is good goes on trial again; but what the machine falls back to must stay good, and then the one that runs gives up
        // the tries that it has left.
        let (written, removed) = match running.standing {
            Standing::Good => {
                let standing = Standing::OnTrial { left: TRIES, done: 0 };
                (Entry { generation: self.new_generation()?, standing, ..other.clone() }, other)
            }
            Standing::OnTrial { done, .. } | Standing::Spent { done } => {
                (Entry { standing: Standing::Spent { done }, ..running.clone() }, running)
            }
        };
        let mut steps = vec![Step::WriteEntry(written), Step::Sync];
        let superseded = self.superseded.iter().map(Entry::file_name);
        remove_entries(&mut steps, superseded.chain([removed.file_name()]));
        Ok(steps)
    }

    /// Higher than everything that has a name.
    fn new_generation(&self) -> Result<u32, PlanRefused> {
        let entries = self.entries.iter().chain(&self.superseded).map(|entry| entry.generation);
        let highest = entries.chain(self.images.iter().map(|image| image.generation)).max();
        let next = highest.unwrap_or(0) + 1;
        if next <= MAX_GENERATION { Ok(next) } else { Err(PlanRefused::NoGeneration) }
    }
}

/// Removes entries, durably: none ever names an image that is gone.
fn remove_entries(steps: &mut Vec<Step>, names: impl Iterator<Item = String>) {
    let removals: Vec<_> = names.map(|name| Step::RemoveEntry { name }).collect();
    if !removals.is_empty() {
        steps.extend(removals);
        steps.push(Step::Sync);
    }
}

fn remove_images<'a>(steps: &mut Vec<Step>, images: impl Iterator<Item = &'a ImageName>) {
    let removals: Vec<_> = images.map(|image| Step::RemoveImage(*image)).collect();
    if !removals.is_empty() {
        steps.extend(removals);
        steps.push(Step::Sync);
    }
}

fn version(new: &NewImage) -> String {
    Entry::printable_version(&new.version)
}
