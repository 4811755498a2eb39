//! [`Stored`]: a record in a file of its own, replaced as a whole.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::disk::{Disk, DiskError, FILE_MODE, read_if_present};
use crate::durable;
use crate::envelope::{DecodeError, EncodeError};
use crate::newer::NewerFile;
use crate::path::DiskPath;
use crate::record::{InvalidRecord, Record};

/// One file with one record in it.
pub struct Stored<T> {
    disk: Arc<dyn Disk>,
    path: DiskPath,
    record: PhantomData<fn() -> T>,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self { disk: Arc::clone(&self.disk), path: self.path.clone(), record: PhantomData }
    }
}

impl<T: Record> Stored<T> {
    /// The record at `path`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, path: DiskPath) -> Self {
        Self { disk, path, record: PhantomData }
    }

    /// Full path of the file, for messages.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        self.disk.full_path(&self.path)
    }

    /// Whether there is a file, whatever is in it.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn exists(&self) -> Result<bool, DiskError> {
        Ok(self.disk.metadata(&self.path)?.is_some())
    }

    /// Reads the record; none if there is no file. What is returned is durable.
    ///
    /// # Errors
    ///
    /// When the file is there and is not a whole, valid record.
    pub fn load(&self) -> Result<Option<T>, LoadError> {
        if let Some(directory) = self.path.parent() {
            durable::settle(&*self.disk, T::LOAD_SITE, &directory)?;
        }
        self.peek()
    }

    /// Reads the record as it is visible now, which a power cut may still take back: for whoever only looks, and does not act
    /// on what is there.
    ///
    /// # Errors
    ///
    /// As [`Stored::load`].
    pub fn peek(&self) -> Result<Option<T>, LoadError> {
        let Some(bytes) = read_if_present(&*self.disk, &self.path, T::FORMAT.file_limit())? else {
            return Ok(None);
        };
        let bytes = Zeroizing::new(bytes);
        let envelope =
            T::FORMAT.decode(&bytes).map_err(|source| LoadError::Decode { path: self.full_path(), source })?;
        let record = T::from_payload(&envelope.payload)
            .map_err(|source| LoadError::Invalid { path: self.full_path(), source })?;
        Ok(Some(record))
    }

    /// Whether a newer Polis has written the file; what else may be wrong with it is not looked at.
    pub(crate) fn newer(&self) -> Option<NewerFile> {
        NewerFile::look(&*self.disk, &self.path, &T::FORMAT)
    }

    /// Replaces the file. When this returns, `record` is durable. `site` names the caller for fault points.
    ///
    /// # Errors
    ///
    /// When the record is not valid or the disk fails; the earlier record is then still there.
    pub fn store(&self, record: &T, site: &'static str) -> Result<(), StoreError> {
        let payload = record.to_payload();
        // What is written can be read again.
        T::from_payload(&payload).map_err(|source| StoreError::Invalid { path: self.full_path(), source })?;
        let bytes = T::FORMAT
            .encode(0, 0, &payload)
            .map_err(|source| StoreError::TooLong { path: self.full_path(), source })?;
        Ok(durable::write(&*self.disk, site, &self.path, FILE_MODE, &bytes)?)
    }

    /// Removes the file, whatever is in it. When this returns, that is durable; a file that is not there is fine.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn remove(&self, site: &'static str) -> Result<(), DiskError> {
        durable::remove(&*self.disk, site, &self.path)
    }
}

/// Why a file could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file is damaged, of another kind, or from the future.
    #[error("the file {} cannot be used; nothing was changed", path.display())]
    Decode {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// The file is whole, but its content makes no sense.
    #[error("the file {} cannot be used; nothing was changed", path.display())]
    Invalid {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with its content.
        #[source]
        source: InvalidRecord,
    },
}

impl LoadError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Disk(error) => Some(error),
            Self::Decode { .. } | Self::Invalid { .. } => None,
        }
    }
}

/// Why a file could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The record could not be read again.
    #[error("refused to write {}: what would be written is not valid", path.display())]
    Invalid {
        /// Full path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InvalidRecord,
    },
    /// The record is too long for its format.
    #[error("refused to write {}", path.display())]
    TooLong {
        /// Full path of the file.
        path: PathBuf,
        /// How long it is.
        #[source]
        source: EncodeError,
    },
}

impl StoreError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Disk(error) => Some(error),
            Self::Invalid { .. } | Self::TooLong { .. } => None,
        }
    }
}
