//! [`JournalStore`]: the journal in two sealed generations on the EFI system partition.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Journal, Seal, SealError};
use crate::disk::DiskError;
use crate::envelope::Format;
use crate::generations::{Generations, GenerationsError, Loaded};
use crate::record::InvalidRecord;

/// Envelope of the journal's files. The payload is at most the node parameters twice over: room for the rest, which is
/// far smaller, and for what a seal adds.
pub const JOURNAL_FORMAT: Format =
    Format { magic: *b"POLISJNL", version: 1, payload_limit: 2 * super::PARAMETERS_LIMIT };

/// Site under which reading the journal settles its directory.
pub(crate) const JOURNAL_LOAD_SITE: &str = "journal/load";

/// Where the journal of a node is kept.
#[derive(Clone)]
pub struct JournalStore {
    files: Generations,
    seal: Arc<dyn Seal>,
}

impl JournalStore {
    /// The journal in `files`, closed by `seal`.
    #[must_use]
    pub fn new(files: Generations, seal: Arc<dyn Seal>) -> Self {
        Self { files, seal }
    }

    /// Full paths of the two files, for messages.
    #[must_use]
    pub fn full_paths(&self) -> [PathBuf; 2] {
        self.files.full_paths()
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
        if value.kind != self.seal.kind() {
            let (expected, name) = (self.seal.kind(), self.seal.name());
            return Err(JournalError::OtherSeal { path, found: value.kind, expected, name });
        }
        let payload = match self.seal.unseal(&value.payload) {
            Ok(payload) => payload,
            Err(source) => return Err(JournalError::Unseal { path, source }),
        };
        match Journal::from_payload(&payload) {
            Ok(value) => Ok(Some(Loaded { value, generation, path, fault })),
            Err(source) => Err(JournalError::Invalid { path, source }),
        }
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
        let sealed = self.seal.seal(&payload).map_err(|source| JournalError::Seal { path, source })?;
        self.files.store(self.seal.kind(), &sealed, site)?;
        Ok(())
    }
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
    /// The journal has a seal of another kind.
    #[error(
        "the enrolment journal {} has a seal of kind {found}, and this node opens kind {expected} ({name}); nothing was \
         changed: start it with the build and the settings that it was made with",
        path.display()
    )]
    OtherSeal {
        /// Full path of the file.
        path: PathBuf,
        /// Kind of its seal.
        found: u32,
        /// Kind that this node opens.
        expected: u32,
        /// Name of that kind.
        name: &'static str,
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
            Self::OtherSeal { .. }
            | Self::Unseal { .. }
            | Self::Seal { .. }
            | Self::Invalid { .. }
            | Self::Refused { .. } => None,
        }
    }
}
