//! The two slots of an ESP: which images it holds, which of them are good, which one starts next, and what has to be written in which
//! order to change that. Pure: names and texts come in, and plans go out.
//!
//! # On the ESP
//!
//! | file | content |
//! |---|---|
//! | `EFI/BOOT/BOOTX64.EFI` | the boot loader, systemd-boot |
//! | `loader/loader.conf` | its settings: no menu, no editor, nothing found by itself |
//! | `loader/entries/polis-GENERATION-SLOT[+LEFT-DONE].conf` | one entry for each slot |
//! | `EFI/polis/polis-SLOT-GENERATION.efi` | the image of a slot, which keeps its name as long as it is there |
//!
//! The boot loader keeps the only state, in the names of the entries, and does so before it starts an image, so nothing depends on the
//! image that is tried. An entry **without** counters is *good*. One with counters is *on trial*: each time the loader takes it, it
//! first lowers LEFT and raises DONE by renaming the entry. At LEFT = 0 it is *spent*, and goes behind all others. Among the rest, the
//! highest generation is taken. So a kernel that never reaches user space costs its one try, and the reset after it starts the newest
//! slot that was good.
//!
//! # What makes this safe on FAT
//!
//! A rename is not atomic there: a power cut leaves both names, or none. Therefore a running node renames nothing. It writes a new
//! file, syncs, and then removes the old one, and an image is whole, synced and read back before an entry names it. What a power cut
//! leaves is an entry too many, which [`Slots::read`] understands, or an image that no entry names, which the next installation
//! removes. The loader renames only the entry that is on trial; were that lost, the good one would be left.
//!
//! No plan of this module touches the entry and the image that run, if they are good, and none removes the last good ones. A damaged
//! entry is reported and counts for nothing, and while it is not known which image runs, there is no plan at all: unreadable never
//! means "slot a".

mod entry;
mod plan;

pub use entry::{
    ENTRY_DIRECTORY, Entry, EntryError, IMAGE_DIRECTORY, ImageName, MAX_ENTRY_LENGTH, MAX_GENERATION, Slot, Standing,
};
pub use plan::{NewImage, PlanRefused, Room, Step};

/// How often a new image is tried. One: whoever waits in front of a machine that hangs resets it once, and a power cut during the
/// try costs no more than that the update is repeated.
pub const TRIES: u32 = 1;

/// The slots as they were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The entry that counts of each slot, in the order in which the boot loader would take them.
    entries: Vec<Entry>,
    /// Entries that a newer one of the same slot replaces, and which the next plan removes.
    superseded: Vec<Entry>,
    /// All images that are there.
    images: Vec<ImageName>,
    damaged: Vec<DamagedEntry>,
}

/// An entry of ours that cannot be read. It counts for nothing. The next installation removes it, since what it replaces is not
/// needed once the image that runs is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedEntry {
    /// Name of its file.
    pub name: String,
    /// Why.
    pub error: EntryError,
}

impl Slots {
    /// Reads the slots from what is in the two directories: `entries` are names and contents of the files in [`ENTRY_DIRECTORY`],
    /// `images` names of the files in [`IMAGE_DIRECTORY`]. An entry whose image is not there is damaged.
    #[must_use]
    pub fn read<'a>(
        entries: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        images: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let images: Vec<ImageName> = images.into_iter().filter_map(ImageName::parse).collect();
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for (name, text) in entries {
            match Entry::parse(name, text) {
                Ok(entry) if images.contains(&entry.image) => found.push(entry),
                Ok(_) => damaged.push(DamagedEntry { name: name.to_owned(), error: EntryError::Text }),
                Err(EntryError::Foreign) => {}
                Err(error) => damaged.push(DamagedEntry { name: name.to_owned(), error }),
            }
        }
        found.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
        let mut slots = Self { entries: Vec::new(), superseded: Vec::new(), images, damaged };
        for entry in found {
            let newer = slots.entries.iter().any(|other| other.slot == entry.slot);
            if newer { slots.superseded.push(entry) } else { slots.entries.push(entry) }
        }
        slots.entries.sort_by_key(boot_order);
        slots
    }

    /// The entries that count, at most one of each slot, in the order in which the boot loader would take them.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Entries of ours that cannot be read: to be reported.
    #[must_use]
    pub fn damaged(&self) -> &[DamagedEntry] {
        &self.damaged
    }

    /// What starts next.
    #[must_use]
    pub fn next(&self) -> Option<&Entry> {
        self.entries.first()
    }

    /// The newest slot that has proven itself.
    #[must_use]
    pub fn last_good(&self) -> Option<&Entry> {
        self.entries.iter().filter(|entry| entry.standing == Standing::Good).max_by_key(|entry| entry.generation)
    }

    /// The entry of one slot.
    #[must_use]
    pub fn of(&self, slot: Slot) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.slot == slot)
    }

    /// The entry of the image that runs. `selected` is the EFI variable `LoaderEntrySelected` of the boot loader: the name of the entry as
    /// it was before the loader counted in it. Nothing when it is the entry of no slot, such as when the image was started by other
    /// means.
    #[must_use]
    pub fn running(&self, selected: &str) -> Option<&Entry> {
        let (generation, slot) = entry::place(selected.trim_end_matches('\0')).ok()?;
        self.entries.iter().find(|entry| (entry.generation, entry.slot) == (generation, slot))
    }
}

/// Which of two entries of one slot counts: the newer one, and of the same generation the good one, then the one that was tried more
/// often. A generation stands twice when an entry was being marked as good, or was being counted, at a power cut.
fn rank(entry: &Entry) -> (u32, u8, u32) {
    match entry.standing {
        Standing::Good => (entry.generation, 2, 0),
        Standing::Spent { done } => (entry.generation, 1, done),
        Standing::OnTrial { done, .. } => (entry.generation, 0, done),
    }
}

/// The boot loader's order: spent ones last, then the highest generation first.
fn boot_order(entry: &Entry) -> (bool, std::cmp::Reverse<u32>) {
    (matches!(entry.standing, Standing::Spent { .. }), std::cmp::Reverse(entry.generation))
}

#[cfg(test)]
mod tests;
