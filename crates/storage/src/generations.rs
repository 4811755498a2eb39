//! Two generations: files `NAME.0` and `NAME.1`, written in turn, so that a write that is torn, or a rename that a FAT
//! file system leaves half done, never costs the last good one.
//!
//! The newest whole generation wins, and a write goes to the file that does not hold it. A damaged file is reported
//! and, at the next write, replaced. A whole file of a future version is an error even beside a readable one: going back
//! to an older state silently could undo a decision.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::disk::{Disk, DiskError, FILE_MODE, read_if_present};
use crate::durable;
use crate::envelope::{DecodeError, EncodeError, Envelope, Format};
use crate::newer::NewerFile;
use crate::path::DiskPath;

/// A pair of files with envelopes of one format; what the payload means is the business of the layer above.
#[derive(Clone)]
pub struct Generations {
    disk: Arc<dyn Disk>,
    format: Format,
    load_site: &'static str,
    slots: [DiskPath; 2],
}

/// What was found in a pair of files.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The newest whole one.
    pub value: T,
    /// Its generation, from 0.
    pub generation: u64,
    /// Full path of the file that it came from.
    pub path: PathBuf,
    /// What is wrong with the other file. Nothing is lost by it yet, but a second fault would cost the value: report it.
    pub fault: Option<SlotFault>,
}

/// One of two files cannot be used.
#[derive(Debug)]
pub struct SlotFault {
    /// Full path of the file.
    pub path: PathBuf,
    /// Why.
    pub problem: SlotProblem,
}

/// Why one of two files cannot be used.
#[derive(Debug)]
pub enum SlotProblem {
    /// It is not there, though the other one says that it was written.
    Missing,
    /// It is not a whole file of the format.
    Decode(DecodeError),
    /// There is nothing in it.
    Empty,
    /// It is longer than the format allows.
    TooLong,
    /// The medium did not give it.
    Medium(DiskError),
}

impl fmt::Display for SlotFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.path.display())?;
        match &self.problem {
            SlotProblem::Missing => formatter.write_str("it is missing, though it was written once"),
            SlotProblem::Decode(error) => error.fmt(formatter),
            SlotProblem::Empty => formatter.write_str("it is empty"),
            SlotProblem::TooLong => formatter.write_str("it is longer than any file of its kind"),
            SlotProblem::Medium(error) => write!(formatter, "it cannot be read: {}", error.source),
        }
    }
}

/// What is in one file.
enum Slot {
    Absent,
    Whole(Envelope),
    Bad(SlotProblem),
}

impl Generations {
    /// The pair `NAME.0` and `NAME.1` in `directory`. `load_site` names the settling before a read.
    ///
    /// # Errors
    ///
    /// When `name` cannot be the name of a file.
    pub fn new(
        disk: Arc<dyn Disk>,
        directory: &DiskPath,
        name: &str,
        format: Format,
        load_site: &'static str,
    ) -> Result<Self, crate::path::InvalidName> {
        let slots = [directory.child(&format!("{name}.0"))?, directory.child(&format!("{name}.1"))?];
        Ok(Self { disk, format, load_site, slots })
    }

    /// Full paths of the two files, for messages.
    #[must_use]
    pub fn full_paths(&self) -> [PathBuf; 2] {
        [self.full_path(0), self.full_path(1)]
    }

    /// The newest whole envelope; none if nothing was ever written to the end. What is returned is durable.
    ///
    /// # Errors
    ///
    /// When no file is whole, when one is of a future version, or when the disk fails.
    pub fn load(&self) -> Result<Option<Loaded<Envelope>>, GenerationsError> {
        let newest = self.newest()?;
        match &newest {
            Some((slot, _)) => durable::settle_file(&*self.disk, self.load_site, &self.slots[*slot])?,
            None => {
                if let Some(directory) = self.slots[0].parent() {
                    durable::settle(&*self.disk, self.load_site, &directory)?;
                }
            }
        }
        Ok(newest.map(|(_, loaded)| loaded))
    }

    /// The newest whole envelope, which is not made durable: for a look on which nothing is based.
    ///
    /// # Errors
    ///
    /// As [`Generations::load`].
    pub fn peek(&self) -> Result<Option<Loaded<Envelope>>, GenerationsError> {
        Ok(self.newest()?.map(|(_, loaded)| loaded))
    }

    /// The whole envelope that is not the newest; none if the other file is absent or cannot be used.
    ///
    /// # Errors
    ///
    /// As [`Generations::load`].
    pub fn older(&self) -> Result<Option<Loaded<Envelope>>, GenerationsError> {
        let Some((holder, _)) = self.newest()? else {
            return Ok(None);
        };
        let slot = 1 - holder;
        Ok(match self.read(slot)? {
            Slot::Whole(value) => {
                let generation = value.generation;
                Some(Loaded { value, generation, path: self.full_path(slot), fault: None })
            }
            Slot::Absent | Slot::Bad(_) => None,
        })
    }

    /// Writes the next generation; returns its number. When this returns, it is durable and the newest.
    ///
    /// # Errors
    ///
    /// When the present state cannot be read (it is never overwritten blindly), or when the disk fails; the earlier
    /// generation is then still there.
    pub fn store(&self, kind: u32, payload: &[u8], site: &'static str) -> Result<u64, GenerationsError> {
        let (slot, generation) = match self.newest()? {
            None => (0, 0),
            Some((holder, loaded)) => {
                let slot = 1 - holder;
                // Files that someone has swapped by hand fall back into order: an even generation is in `.0`.
                let step = if (loaded.generation + 1) % 2 == slot as u64 { 1 } else { 2 };
                (slot, loaded.generation + step)
            }
        };
        let bytes = self
            .format
            .encode(kind, generation, payload)
            .map_err(|source| GenerationsError::TooLong { path: self.full_path(slot), source })?;
        durable::write(&*self.disk, site, &self.slots[slot], FILE_MODE, &bytes)?;
        Ok(generation)
    }

    /// Writes the first generation where neither file can be used: for a value that has come back from elsewhere. Anything else is
    /// left as it is. A cut leaves two that cannot be used, or this one.
    ///
    /// # Errors
    ///
    /// When a newer Polis has written one of them, or when the disk fails.
    pub fn store_over_unusable(&self, kind: u32, payload: &[u8], site: &'static str) -> Result<(), GenerationsError> {
        match self.newest() {
            Err(GenerationsError::BothUnusable { .. }) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
        let bytes = self
            .format
            .encode(kind, 0, payload)
            .map_err(|source| GenerationsError::TooLong { path: self.full_path(0), source })?;
        Ok(durable::write(&*self.disk, site, &self.slots[0], FILE_MODE, &bytes)?)
    }

    /// The first of the two files that a newer Polis has written; what else may be wrong with them is not looked at.
    pub(crate) fn newer(&self) -> Option<NewerFile> {
        self.slots.iter().find_map(|slot| NewerFile::look(&*self.disk, slot, &self.format))
    }

    /// Removes both files, whatever is in them: for a value that its owner can make anew, when neither can be used. When
    /// this returns, that is durable.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn discard(&self, site: &'static str) -> Result<(), DiskError> {
        self.slots.iter().try_for_each(|slot| durable::remove(&*self.disk, site, slot))
    }

    /// The newest whole one and the slot that holds it.
    fn newest(&self) -> Result<Option<(usize, Loaded<Envelope>)>, GenerationsError> {
        let found = |slot: usize, envelope: Envelope, fault: Option<SlotProblem>| {
            let fault = fault.map(|problem| SlotFault { path: self.full_path(1 - slot), problem });
            let generation = envelope.generation;
            Ok(Some((slot, Loaded { value: envelope, generation, path: self.full_path(slot), fault })))
        };
        let unusable = |[first, second]: [SlotProblem; 2]| {
            let first = SlotFault { path: self.full_path(0), problem: first };
            let second = SlotFault { path: self.full_path(1), problem: second };
            Err(GenerationsError::BothUnusable { faults: Box::new([first, second]) })
        };
        // The very first write makes only one of the two files.
        let missing = |envelope: &Envelope| (envelope.generation > 0).then_some(SlotProblem::Missing);
        match (self.read(0)?, self.read(1)?) {
            // The very first write makes `.0` alone, and a power cut within it can leave that empty on FAT, which gives a name to a
            // file before it gives it a length. No write that has returned leaves this, so nothing was ever stored.
            (Slot::Absent | Slot::Bad(SlotProblem::Empty), Slot::Absent) => Ok(None),
            (Slot::Whole(first), Slot::Whole(second)) => {
                if first.generation >= second.generation {
                    found(0, first, None)
                } else {
                    found(1, second, None)
                }
            }
            (Slot::Whole(envelope), Slot::Absent) => {
                let fault = missing(&envelope);
                found(0, envelope, fault)
            }
            (Slot::Absent, Slot::Whole(envelope)) => {
                let fault = missing(&envelope);
                found(1, envelope, fault)
            }
            (Slot::Whole(envelope), Slot::Bad(problem)) => found(0, envelope, Some(problem)),
            (Slot::Bad(problem), Slot::Whole(envelope)) => found(1, envelope, Some(problem)),
            (Slot::Bad(problem), Slot::Absent) => unusable([problem, SlotProblem::Missing]),
            (Slot::Absent, Slot::Bad(problem)) => unusable([SlotProblem::Missing, problem]),
            (Slot::Bad(first), Slot::Bad(second)) => unusable([first, second]),
        }
    }

    fn read(&self, slot: usize) -> Result<Slot, GenerationsError> {
        let bytes = match read_if_present(&*self.disk, &self.slots[slot], self.format.file_limit()) {
            Ok(Some(bytes)) => Zeroizing::new(bytes),
            Ok(None) => return Ok(Slot::Absent),
            Err(error) if error.is_too_long() => return Ok(Slot::Bad(SlotProblem::TooLong)),
            // A bad sector is what the second generation is for. Any other failure can be cured, and then the newest
            // generation may well be in this file.
            Err(error) if error.is_medium_failure() => return Ok(Slot::Bad(SlotProblem::Medium(error))),
            Err(error) => return Err(error.into()),
        };
        if bytes.is_empty() {
            return Ok(Slot::Bad(SlotProblem::Empty));
        }
        match self.format.decode(&bytes) {
            Ok(envelope) => Ok(Slot::Whole(envelope)),
            Err(DecodeError::FutureVersion { found, known }) => {
                Err(GenerationsError::FutureVersion { path: self.full_path(slot), found, known })
            }
            Err(error @ (DecodeError::NotThisFormat { .. } | DecodeError::Damaged { .. })) => {
                Ok(Slot::Bad(SlotProblem::Decode(error)))
            }
        }
    }

    fn full_path(&self, slot: usize) -> PathBuf {
        self.disk.full_path(&self.slots[slot])
    }
}

/// Why a pair of files could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum GenerationsError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There are files, and none of them is whole.
    #[error(
        "neither copy can be used, and nothing was changed; {}; {}; restore one of them from a backup", faults[0], faults[1]
    )]
    BothUnusable {
        /// What is wrong with `NAME.0` and with `NAME.1`.
        faults: Box<[SlotFault; 2]>,
    },
    /// One of the files is from the future.
    #[error(
        "the file {} has version {found} of its format, and this build knows version {known}: it was written by a newer \
         Polis, and nothing was changed; run that version or a newer one",
        path.display()
    )]
    FutureVersion {
        /// Full path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this build knows.
        known: u32,
    },
    /// The content is too long for its format.
    #[error("refused to write {}", path.display())]
    TooLong {
        /// Full path of the file.
        path: PathBuf,
        /// How long it is.
        #[source]
        source: EncodeError,
    },
}

impl GenerationsError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Disk(error) => Some(error),
            Self::BothUnusable { .. } | Self::FutureVersion { .. } | Self::TooLong { .. } => None,
        }
    }
}
