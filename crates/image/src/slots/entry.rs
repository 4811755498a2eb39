//! The names and the texts of the files that the slots consist of.

use std::fmt;

/// Directory of the boot loader's entries on the ESP.
pub const ENTRY_DIRECTORY: &str = "loader/entries";
/// Directory of the images on the ESP.
pub const IMAGE_DIRECTORY: &str = "EFI/polis";
/// Digits of a generation in a name. Names of equal length sort the same way for people and for the boot loader.
const DIGITS: usize = 8;
/// Highest generation that a name can hold; at an update an hour it lasts for eleven thousand years.
pub const MAX_GENERATION: u32 = 99_999_999;
/// Longest entry in bytes. It has four short lines; a longer file is nobody's entry of ours.
pub const MAX_ENTRY_LENGTH: usize = 1024;
/// Longest version in a title, so that no version makes an entry too long.
const MAX_VERSION_LENGTH: usize = 128;

/// One of the two places for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The place that a new machine starts with.
    A,
    /// The other one.
    B,
}

impl Slot {
    /// The other place.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    fn of_letter(letter: &str) -> Option<Self> {
        match letter {
            "a" => Some(Self::A),
            "b" => Some(Self::B),
            _ => None,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.letter())
    }
}

/// What is known of an image, from the name of its entry. The boot loader counts in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has proven itself, or it came with the disk. The boot loader never touches its entry.
    Good,
    /// It may be tried this many times more.
    OnTrial {
        /// At least 1.
        left: u32,
        /// How often it was tried.
        done: u32,
    },
    /// It has no try left. If it runs, this is its last try; if not, it has failed, and the boot loader takes it only when there is no
    /// other.
    Spent {
        /// How often it was tried.
        done: u32,
    },
}

/// An image file of a slot: `polis-SLOT-GENERATION.efi` in [`IMAGE_DIRECTORY`]. It gets its name once and keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// The place.
    pub slot: Slot,
    /// Generation of the installation that wrote it.
    pub generation: u32,
}

impl ImageName {
    /// What this file name says; nothing for a name that is not ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        // FAT keeps the case of a name but firmware may report it in another.
        let name = name.to_ascii_lowercase();
        let (slot, generation) = name.strip_prefix("polis-")?.strip_suffix(".efi")?.split_once('-')?;
        Some(Self { slot: Slot::of_letter(slot)?, generation: parse_generation(generation)? })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "polis-{}-{:0DIGITS$}.efi", self.slot, self.generation)
    }
}

/// An entry of the boot loader: `polis-GENERATION-SLOT[+LEFT-DONE].conf` in [`ENTRY_DIRECTORY`]. Of those that have a try left or are
/// good the loader takes the highest generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which of several entries is newer.
    pub generation: u32,
    /// The place of its image.
    pub slot: Slot,
    /// Whether it has proven itself.
    pub standing: Standing,
    /// File name of its image.
    pub image: ImageName,
    /// SHA-256 of the image.
    pub sha256: [u8; 32],
    /// Version of the Polis in it, for people.
    pub version: String,
}

impl Entry {
    /// Name of the entry's file.
    #[must_use]
    pub fn file_name(&self) -> String {
        let (generation, slot) = (self.generation, self.slot);
        match self.standing {
            Standing::Good => format!("polis-{generation:0DIGITS$}-{slot}.conf"),
            Standing::OnTrial { left, done } => format!("polis-{generation:0DIGITS$}-{slot}+{left}-{done}.conf"),
            Standing::Spent { done } => format!("polis-{generation:0DIGITS$}-{slot}+0-{done}.conf"),
        }
    }

    /// The entry's text. The sort key is the same in all, and there is no version key: the name alone orders them. What the loader starts
    /// comes last and without an end of line, so that a torn entry names nothing that is there.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { slot, image, sha256, version, .. } = self;
        let sha256 = hex::encode(sha256);
        format!("title Polis {version}\nsort-key polis\n# slot {slot} sha256 {sha256}\nefi /{IMAGE_DIRECTORY}/{image}")
    }

    /// What a file of [`ENTRY_DIRECTORY`] says. Every byte of it is accounted for: a torn or changed entry is damaged, never another
    /// one.
    ///
    /// # Errors
    ///
    /// When the name is ours and the text is not what goes with it, or the name is not ours.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, EntryError> {
        let (generation, slot, standing) = parse_name(name)?;
        let entry = parse_text(text, generation, slot, standing).ok_or(EntryError::Text)?;
        if entry.text().as_bytes() == text { Ok(entry) } else { Err(EntryError::Text) }
    }

    /// A version as it may stand in a title: one line of printable ASCII, not too long.
    #[must_use]
    pub fn printable_version(version: &str) -> String {
        version.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').take(MAX_VERSION_LENGTH).collect()
    }
}

/// Why a file is no entry of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Somebody else put it there.
    #[error("it is not an entry of Polis")]
    Foreign,
    /// It begins as ours do and does not go on like them.
    #[error("its name is damaged")]
    Name,
    /// Its content does not belong to its name.
    #[error("its content is damaged")]
    Text,
}

fn parse_generation(text: &str) -> Option<u32> {
    let generation = (text.len() == DIGITS).then(|| parse_number(text))??;
    (1..=MAX_GENERATION).contains(&generation).then_some(generation)
}

/// Digits only: `parse` alone would take a sign too.
fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Generation and slot in the name of an entry.
pub(super) fn place(name: &str) -> Result<(u32, Slot), EntryError> {
    parse_name(name).map(|(generation, slot, _)| (generation, slot))
}

fn parse_name(name: &str) -> Result<(u32, Slot, Standing), EntryError> {
    // FAT keeps the case of a name, but the loader tells it in lower case.
    let lower = name.to_ascii_lowercase();
    let stem = lower.strip_prefix("polis-").and_then(|rest| rest.strip_suffix(".conf")).ok_or(EntryError::Foreign)?;
    parse_stem(stem).ok_or(EntryError::Name)
}

fn parse_stem(stem: &str) -> Option<(u32, Slot, Standing)> {
    let (place, counters) = match stem.split_once('+') {
        Some((place, counters)) => (place, Some(counters)),
        None => (stem, None),
    };
    let (generation, slot) = place.split_once('-')?;
    let standing = match counters {
        None => Standing::Good,
        Some(counters) => {
            let (left, done) = counters.split_once('-')?;
            match (parse_number(left)?, parse_number(done)?) {
                (0, done) => Standing::Spent { done },
                (left, done) => Standing::OnTrial { left, done },
            }
        }
    };
    Some((parse_generation(generation)?, Slot::of_letter(slot)?, standing))
}

fn parse_text(text: &[u8], generation: u32, slot: Slot, standing: Standing) -> Option<Entry> {
    if text.len() > MAX_ENTRY_LENGTH {
        return None;
    }
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    let version = lines.next()?.strip_prefix("title Polis ")?;
    let sha256 = lines.nth(1)?.rsplit(' ').next()?;
    let image = lines.next()?.strip_prefix("efi /")?.strip_prefix(IMAGE_DIRECTORY)?.strip_prefix('/')?;
    let image = ImageName::parse(image)?;
    let entry = Entry {
        generation,
        slot,
        standing,
        image,
        sha256: hex::decode(sha256).ok()?.try_into().ok()?,
        version: version.to_owned(),
    };
    (image.slot == slot && image.generation <= generation && Entry::printable_version(version) == version)
        .then_some(entry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn entry(generation: u32, slot: Slot, standing: Standing) -> Entry {
        let image = ImageName { slot, generation };
        Entry {
            generation,
            slot,
            standing,
            image,
            sha256: [generation.to_le_bytes()[0]; 32],
            version: "1.2.3".to_owned(),
        }
    }

    #[test]
    fn names_are_the_documented_ones() {
        for (entry, name) in [
            (entry(1, Slot::A, Standing::Good), "polis-00000001-a.conf"),
            (entry(12, Slot::B, Standing::OnTrial { left: 1, done: 0 }), "polis-00000012-b+1-0.conf"),
            (entry(12, Slot::B, Standing::Spent { done: 1 }), "polis-00000012-b+0-1.conf"),
        ] {
            assert_eq!(entry.file_name(), name);
            assert_eq!(Entry::parse(name, entry.text().as_bytes()).unwrap(), entry);
        }
        assert_eq!(entry(12, Slot::B, Standing::Good).image.to_string(), "polis-b-00000012.efi");
        assert_eq!(ImageName::parse("POLIS-B-00000012.EFI"), Some(ImageName { slot: Slot::B, generation: 12 }));
    }

    #[test]
    fn the_text_is_the_documented_one() {
        let sha256 = "0c".repeat(32);
        assert_eq!(
            entry(12, Slot::B, Standing::Good).text(),
            format!("title Polis 1.2.3\nsort-key polis\n# slot b sha256 {sha256}\nefi /EFI/polis/polis-b-00000012.efi")
        );
    }

    #[test]
    fn other_names_are_told_apart() {
        let text = entry(1, Slot::A, Standing::Good).text();
        for (name, error) in [
            ("debian.conf", EntryError::Foreign),
            ("polis-00000001-a.efi", EntryError::Foreign),
            ("polis-1-a.conf", EntryError::Name),
            ("polis-00000000-a.conf", EntryError::Name),
            ("polis-00000001-c.conf", EntryError::Name),
            ("polis-00000001-a+1.conf", EntryError::Name),
            ("polis-00000001-a+-1-0.conf", EntryError::Name),
            ("polis-00000001-b.conf", EntryError::Text),
        ] {
            assert_eq!(Entry::parse(name, text.as_bytes()), Err(error), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_torn_or_flipped_text_is_damaged_or_another_checksum(cut: prop::sample::Index, bit in 0..8_u8, place: prop::sample::Index) {
            let entry = entry(7, Slot::A, Standing::Good);
            let text = entry.text().into_bytes();
            prop_assert_eq!(Entry::parse(&entry.file_name(), &text[..cut.index(text.len())]), Err(EntryError::Text));
            let mut flipped = text.clone();
            flipped[place.index(text.len())] ^= 1 << bit;
            if let Ok(other) = Entry::parse(&entry.file_name(), &flipped) {
                // A checksum that matches no image, a title that only people read, or an older image file, which has to be there and
                // has another checksum.
                prop_assert!(
                    other.sha256 != entry.sha256 || other.version != entry.version || other.image != entry.image
                );
                prop_assert_eq!((other.generation, other.slot, other.standing), (7, Slot::A, Standing::Good));
            }
        }

        #[test]
        fn noise_is_never_a_panic(name in "[ -~]{0,40}", text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Entry::parse(&name, &text).is_err());
        }
    }
}
