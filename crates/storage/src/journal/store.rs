//! [`JournalStore`]: the journal in two sealed generations on the EFI system partition.
//!
//! Each file says the kind of its seal, and the newest says the kind of the next one, unless somebody decides otherwise
//! ([`JournalStore::choose_seal`], [`JournalStore::change_seal`]). What was taken out of the journal for good, such as a
//! key, is still in the older generation until both were written: [`JournalStore::store_both`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::{Journal, SealError, SealKind, SealTrouble, Seals};
use crate::disk::DiskError;
use crate::envelope::{Envelope, Format};
use crate::generations::{Generations, GenerationsError, Loaded};
use crate::record::InvalidRecord;

/// Envelope of the journal's files. The payload is at most the node parameters twice over: room for the rest, which is
/// far smaller, and for what a seal adds.
pub const JOURNAL_FORMAT: Format =
    Format { magic: *b"POLISJNL", version: 1, payload_limit: 2 * super::PARAMETERS_LIMIT };

/// Site under which reading the journal settles its directory.
pub(crate) const JOURNAL_LOAD_SITE: &str = "journal/load";

/// Where the journal of a node is kept. Its methods block. Clones are one store.
#[derive(Clone)]
pub struct JournalStore {
    files: Generations,
    seals: Seals,
    /// Kind of the next file, once something was read, written or chosen.
    kind: Arc<Mutex<Option<SealKind>>>,
    /// How often something was written.
    written: Arc<watch::Sender<u64>>,
}

impl JournalStore {
    /// The journal in `files`, closed by one of `seals`.
    #[must_use]
    pub fn new(files: Generations, seals: Seals) -> Self {
        Self { files, seals, kind: Arc::default(), written: Arc::default() }
    }

    /// Wakes after each write, whoever has made it: for who keeps something that follows from the journal.
    #[must_use]
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Full paths of the two files, for messages.
    #[must_use]
    pub fn full_paths(&self) -> [PathBuf; 2] {
        self.files.full_paths()
    }

    /// The seals of this machine.
    #[must_use]
    pub const fn seals(&self) -> &Seals {
        &self.seals
    }

    /// Kind of the seal of what was read or written last; none before either.
    #[must_use]
    pub fn seal_kind(&self) -> Option<SealKind> {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the kind of the next file: what a first start does before it writes.
    pub fn choose_seal(&self, kind: SealKind) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// The newest whole journal; none if there is no file at all. What is returned is durable. A journal that is there
    /// and cannot be used is an error, and never an older one or none.
    ///
    /// # Errors
    ///
    /// See [`JournalError`].
    pub fn load(&self) -> Result<Option<Loaded<Journal>>, JournalError> {
        let Some(Loaded { value, generation, path, fault }) = self.files.load()? else {
            return Ok(None);
        };
        let (kind, value) = self.open(&value, &path)?;
        self.choose_seal(kind);
        Ok(Some(Loaded { value, generation, path, fault }))
    }

    /// Writes the next generation. When this returns, `journal` is durable and the newest. `site` names the caller for
    /// fault points.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]; the earlier journal is then still there.
    pub fn store(&self, journal: &Journal, site: &'static str) -> Result<(), JournalError> {
        let payload = journal.to_payload();
        let [path, _] = self.files.full_paths();
        // What is written can be read again.
        if let Err(source) = Journal::from_payload(&payload) {
            return Err(JournalError::Refused { path, source });
        }
        let kind = match self.seal_kind() {
            Some(kind) => kind,
            None => match self.files.load()? {
                Some(Loaded { value, path, .. }) => kind_of(&value, &path)?,
                None => SealKind::Plain,
            },
        };
        let sealed = match self.seals.get(kind).and_then(|seal| seal.seal(&payload)) {
            Ok(sealed) => sealed,
            Err(source) => return Err(JournalError::Seal { path, source }),
        };
        self.files.store(kind.number(), &sealed, site)?;
        self.choose_seal(kind);
        self.written.send_modify(|written| *written += 1);
        Ok(())
    }

    /// Writes `journal` as [`JournalStore::store`] does, and once more, so that both generations hold it and nothing of
    /// an earlier one is left.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]; the newest whole one is then the earlier journal or this one.
    pub fn store_both(&self, journal: &Journal, site: &'static str) -> Result<(), JournalError> {
        self.store(journal, site)?;
        self.store(journal, site)
    }

    /// Makes both generations hold `newest`, which was just loaded, under the seal of its kind, if they do not yet: what a
    /// process that died within [`JournalStore::store_both`] or [`JournalStore::change_seal`] has left to do. What was seen of
    /// the members may differ, as nothing of that is to be forgotten. Returns whether something was written.
    ///
    /// # Errors
    ///
    /// See [`JournalError`].
    pub fn unify(&self, newest: &Journal, site: &'static str) -> Result<bool, JournalError> {
        let alike = self.files.older()?.is_some_and(|older| {
            Some(older.value.kind) == self.seal_kind().map(SealKind::number)
                && self.open(&older.value, &older.path).is_ok_and(|(_, older)| is_alike(older, newest))
        });
        if !alike {
            self.store(newest, site)?;
        }
        Ok(!alike)
    }

    /// Rewrites both generations with a seal of kind `kind`.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]; the newest whole one has then the earlier kind or this one, and opens.
    pub fn change_seal(&self, kind: SealKind, site: &'static str) -> Result<(), JournalError> {
        let Some(Loaded { value, .. }) = self.load()? else {
            return Ok(());
        };
        self.choose_seal(kind);
        let changed = self.store_both(&value, site);
        if changed.is_err() {
            // The newest file knows.
            *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        changed
    }

    /// Binds the seal to the present state of the machine and rewrites both generations.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]; the newest whole one opens as before, or in the present state.
    pub fn reseal(&self, site: &'static str) -> Result<(), JournalError> {
        let Some(Loaded { value, path, .. }) = self.load()? else {
            return Ok(());
        };
        let kind = self.seal_kind().unwrap_or(SealKind::Plain);
        let renewed = self.seals.get(kind).and_then(|seal| seal.renew());
        renewed.map_err(|source| JournalError::Seal { path, source })?;
        self.store_both(&value, site)
    }

    /// Writes into both generations a journal that has come back from elsewhere, where the one that is there does not open. It is
    /// sealed to the present state of the machine, with a seal of the kind that it had, or of `otherwise` if that cannot be told. Whoever
    /// calls this has made sure that it is the journal of this node.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]; until the first of the two is written, everything is as it was.
    pub fn restore(
        &self,
        journal: &Journal,
        otherwise: impl FnOnce() -> Result<SealKind, SealError>,
        site: &'static str,
    ) -> Result<(), JournalError> {
        let [path, _] = self.files.full_paths();
        let untold = || otherwise().map_err(|source| JournalError::Seal { path: path.clone(), source });
        let (kind, is_unusable) = match self.files.peek() {
            Ok(Some(Loaded { value, path, .. })) => (kind_of(&value, &path)?, false),
            Ok(None) => (untold()?, false),
            Err(GenerationsError::BothUnusable { .. }) => (untold()?, true),
            Err(error) => return Err(error.into()),
        };
        let seal = self.seals.get(kind).map_err(|source| JournalError::Seal { path: path.clone(), source })?;
        seal.renew().map_err(|source| JournalError::Seal { path: path.clone(), source })?;
        self.choose_seal(kind);
        if is_unusable {
            let sealed = seal.seal(&journal.to_payload()).map_err(|source| JournalError::Seal { path, source })?;
            self.files.store_over_unusable(kind.number(), &sealed, site)?;
        }
        self.store_both(journal, site)
    }

    /// Whether the newest journal would open at the next start of the machine.
    ///
    /// # Errors
    ///
    /// See [`JournalError`].
    pub fn check(&self) -> Result<(), JournalError> {
        let Some(Loaded { value, path, .. }) = self.files.peek()? else {
            return Ok(());
        };
        let kind = kind_of(&value, &path)?;
        let checked = self.seals.get(kind).and_then(|seal| seal.check(&value.payload));
        checked.map_err(|source| JournalError::Unseal { path, source })
    }

    /// Opens the seal of a file and reads what is in it.
    fn open(&self, envelope: &Envelope, path: &Path) -> Result<(SealKind, Journal), JournalError> {
        let kind = kind_of(envelope, path)?;
        let payload = match self.seals.get(kind).and_then(|seal| seal.unseal(&envelope.payload)) {
            Ok(payload) => payload,
            Err(source) => return Err(JournalError::Unseal { path: path.to_owned(), source }),
        };
        match Journal::from_payload(&payload) {
            Ok(journal) => Ok((kind, journal)),
            Err(source) => Err(JournalError::Invalid { path: path.to_owned(), source }),
        }
    }
}

/// Whether the journals say the same, apart from what was seen of the members.
fn is_alike(mut older: Journal, newest: &Journal) -> bool {
    older.highest_epoch = newest.highest_epoch;
    older.epoch_floors.clone_from(&newest.epoch_floors);
    older == *newest
}

fn kind_of(envelope: &Envelope, path: &Path) -> Result<SealKind, JournalError> {
    let found = envelope.kind;
    SealKind::from_number(found).ok_or_else(|| JournalError::UnknownSeal { path: path.to_owned(), found })
}

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The files failed.
    #[error("the enrolment journal cannot be used")]
    Files(#[source] GenerationsError),
    /// The disk failed.
    #[error(transparent)]
    Disk(DiskError),
    /// The journal has a seal of a kind that this build does not know.
    #[error(
        "the enrolment journal {} has a seal of kind {found}, which this build does not know; nothing was changed: start \
         it with the build that it was made with",
        path.display()
    )]
    UnknownSeal {
        /// Full path of the file.
        path: PathBuf,
        /// Kind of its seal.
        found: u32,
    },
    /// The seal did not open.
    #[error("the seal of the enrolment journal {} does not open; nothing was changed", path.display())]
    Unseal {
        /// Full path of the file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: SealError,
    },
    /// The seal did not close.
    #[error("the enrolment journal {} cannot be sealed, so it was not written", path.display())]
    Seal {
        /// Full path of the file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: SealError,
    },
    /// The journal is whole, but makes no sense.
    #[error("the enrolment journal {} cannot be used; nothing was changed", path.display())]
    Invalid {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InvalidRecord,
    },
    /// The journal that was to be written makes no sense.
    #[error("refused to write the enrolment journal {}: what would be written is not valid", path.display())]
    Refused {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InvalidRecord,
    },
}

impl From<GenerationsError> for JournalError {
    fn from(error: GenerationsError) -> Self {
        match error {
            GenerationsError::Disk(error) => Self::Disk(error),
            GenerationsError::BothUnusable { .. }
            | GenerationsError::FutureVersion { .. }
            | GenerationsError::TooLong { .. } => Self::Files(error),
        }
    }
}

impl JournalError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Disk(error) => Some(error),
            Self::Files(error) => error.disk_error(),
            Self::UnknownSeal { .. }
            | Self::Unseal { .. }
            | Self::Seal { .. }
            | Self::Invalid { .. }
            | Self::Refused { .. } => None,
        }
    }

    /// What keeps the seal from opening or closing, if that is what it was.
    #[must_use]
    pub const fn seal_trouble(&self) -> Option<SealTrouble> {
        match self {
            Self::Unseal { source, .. } | Self::Seal { source, .. } => Some(source.trouble),
            Self::Disk(_) | Self::Files(_) | Self::UnknownSeal { .. } | Self::Invalid { .. } | Self::Refused { .. } => {
                None
            }
        }
    }
}
