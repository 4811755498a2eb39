//! [`TwoGenerations`]: a record in a pair of files of which one is always whole.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Disk, DiskError};
use crate::generations::{Generations, GenerationsError, Loaded};
use crate::newer::NewerFile;
use crate::path::{DiskPath, InvalidName};
use crate::record::{InvalidRecord, Record};

/// A record in the files `NAME.0` and `NAME.1`.
pub struct TwoGenerations<T> {
    files: Generations,
    record: PhantomData<fn() -> T>,
}

impl<T> Clone for TwoGenerations<T> {
    fn clone(&self) -> Self {
        Self { files: self.files.clone(), record: PhantomData }
    }
}

impl<T: Record> TwoGenerations<T> {
    /// The record in `directory` whose files are called `name`.
    ///
    /// # Errors
    ///
    /// When `name` cannot be the name of a file.
    pub fn new(disk: Arc<dyn Disk>, directory: &DiskPath, name: &str) -> Result<Self, InvalidName> {
        let files = Generations::new(disk, directory, name, T::FORMAT, T::LOAD_SITE)?;
        Ok(Self { files, record: PhantomData })
    }

    /// Full paths of the two files, for messages.
    #[must_use]
    pub fn full_paths(&self) -> [PathBuf; 2] {
        self.files.full_paths()
    }

    /// The newest whole record; none if there is no file. What is returned is durable.
    ///
    /// # Errors
    ///
    /// When no file is whole, when one is of a future version, when the newest is whole but makes no sense, or when the
    /// disk fails.
    pub fn load(&self) -> Result<Option<Loaded<T>>, TwoGenerationsError> {
        let Some(Loaded { value, generation, path, fault }) = self.files.load()? else {
            return Ok(None);
        };
        match T::from_payload(&value.payload) {
            Ok(value) => Ok(Some(Loaded { value, generation, path, fault })),
            Err(source) => Err(TwoGenerationsError::Invalid { path, source }),
        }
    }

    /// Writes the next generation. When this returns, `record` is durable and the newest. `site` names the caller for
    /// fault points.
    ///
    /// # Errors
    ///
    /// When the record is not valid, when the present state cannot be read, or when the disk fails; the earlier
    /// generation is then still there.
    pub fn store(&self, record: &T, site: &'static str) -> Result<(), TwoGenerationsError> {
        let payload = record.to_payload();
        // What is written can be read again.
        if let Err(source) = T::from_payload(&payload) {
            let [path, _] = self.full_paths();
            return Err(TwoGenerationsError::Invalid { path, source });
        }
        self.files.store(0, &payload, site)?;
        Ok(())
    }

    /// As [`Generations::newer`].
    pub(crate) fn newer(&self) -> Option<NewerFile> {
        self.files.newer()
    }

    /// Removes both files, whatever is in them: for a record that its owner can make anew, when neither can be used.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn discard(&self, site: &'static str) -> Result<(), TwoGenerationsError> {
        Ok(self.files.discard(site).map_err(GenerationsError::Disk)?)
    }
}

/// Why a record in two generations could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TwoGenerationsError {
    /// The files failed.
    #[error(transparent)]
    Files(#[from] GenerationsError),
    /// The content makes no sense, though it is whole.
    #[error("the content of {} cannot be used; nothing was changed", path.display())]
    Invalid {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InvalidRecord,
    },
}

impl TwoGenerationsError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Files(error) => error.disk_error(),
            Self::Invalid { .. } => None,
        }
    }
}
