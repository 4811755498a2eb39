//! Placement: where each directory and file of the declared tree is.

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{DIRECTORY_MODE, Disk, DiskError, FILE_MODE, Metadata, read_if_present};
use crate::durable;
use crate::generations::Generations;
use crate::journal::JOURNAL_FORMAT;
use crate::path::{DiskPath, InvalidName};
use crate::record::Record;
use crate::stored::Stored;
use crate::two_generations::TwoGenerations;

/// A directory of the tree.
#[derive(Clone)]
pub struct Directory {
    disk: Arc<dyn Disk>,
    path: DiskPath,
}

impl Directory {
    /// Path below the root of the node.
    #[must_use]
    pub const fn path(&self) -> &DiskPath {
        &self.path
    }

    /// Path as people and child processes know it.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        self.disk.full_path(&self.path)
    }

    /// Makes the directory durably, unless it is there; its parent must be. `site` names the caller for fault points.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn create(&self, site: &'static str) -> Result<(), DiskError> {
        durable::create_directory(&*self.disk, site, &self.path, DIRECTORY_MODE)
    }

    /// Makes the directory, unless it is there, without making it durable: for what is emptied at each start anyway.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn create_ephemeral(&self) -> Result<(), DiskError> {
        match self.disk.create_directory(&self.path, DIRECTORY_MODE) {
            Err(error) if error.already_exists() && self.exists()? => Ok(()),
            created => created,
        }
    }

    /// Whether the directory is there.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn exists(&self) -> Result<bool, DiskError> {
        Ok(matches!(self.disk.metadata(&self.path)?, Some(Metadata::Directory { .. })))
    }

    /// Names in it, sorted.
    ///
    /// # Errors
    ///
    /// When the disk fails or the directory is absent.
    pub fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list(&self.path)
    }

    /// Removes all that is in it.
    ///
    /// # Errors
    ///
    /// When the disk fails or the directory is absent.
    pub fn clear(&self) -> Result<(), DiskError> {
        self.disk.clear_directory(&self.path)
    }

    /// Removes stale temporaries; returns the full paths of what was removed.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn sweep(&self) -> Result<Vec<PathBuf>, DiskError> {
        let directory = self.full_path();
        Ok(durable::sweep(&*self.disk, &self.path)?.into_iter().map(|name| directory.join(name)).collect())
    }
}

/// A file of the tree whose content has a format of someone else's.
#[derive(Clone)]
pub struct PlainFile {
    disk: Arc<dyn Disk>,
    path: DiskPath,
}

impl PlainFile {
    /// Path below the root of the node.
    #[must_use]
    pub const fn path(&self) -> &DiskPath {
        &self.path
    }

    /// Path as people and child processes know it.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        self.disk.full_path(&self.path)
    }

    /// Reads at most `limit` bytes; none if there is no file.
    ///
    /// # Errors
    ///
    /// When the disk fails or the file is longer.
    pub fn read(&self, limit: usize) -> Result<Option<Vec<u8>>, DiskError> {
        read_if_present(&*self.disk, &self.path, limit)
    }

    /// Replaces the file durably. `site` names the caller for fault points.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn write(&self, bytes: &[u8], site: &'static str) -> Result<(), DiskError> {
        durable::write(&*self.disk, site, &self.path, FILE_MODE, bytes)
    }

    /// Removes the file durably, if it is there. `site` names the caller for fault points.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn remove(&self, site: &'static str) -> Result<(), DiskError> {
        durable::remove(&*self.disk, site, &self.path)
    }
}

/// A file or socket in a directory that is emptied at each start: nothing about it is durable.
#[derive(Clone)]
pub struct EphemeralFile {
    disk: Arc<dyn Disk>,
    path: DiskPath,
}

impl EphemeralFile {
    /// Path below the root of the node.
    #[must_use]
    pub const fn path(&self) -> &DiskPath {
        &self.path
    }

    /// Path as people and child processes know it.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        self.disk.full_path(&self.path)
    }

    /// Removes the file, if it is there, and writes it anew.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn write(&self, bytes: &[u8]) -> Result<(), DiskError> {
        self.remove()?;
        self.disk.create_exclusive(&self.path, FILE_MODE, bytes)
    }

    /// Removes the file, if it is there.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn remove(&self) -> Result<(), DiskError> {
        match self.disk.remove_file(&self.path) {
            Err(error) if !error.is_absent() => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Gives each part of a tree its place and refuses one that is taken.
pub(crate) struct Placement {
    disk: Arc<dyn Disk>,
    taken: Vec<DiskPath>,
}

impl Placement {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, taken: Vec::new() }
    }

    /// Paths of all parts so far.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> &[DiskPath] {
        &self.taken
    }

    pub(crate) fn root(&self) -> Directory {
        Directory { disk: Arc::clone(&self.disk), path: DiskPath::root() }
    }

    pub(crate) fn directory(&mut self, parent: &Directory, name: &str) -> Result<Directory, PlacementError> {
        Ok(Directory { path: self.take(parent, name)?, disk: Arc::clone(&self.disk) })
    }

    pub(crate) fn plain_file(&mut self, parent: &Directory, name: &str) -> Result<PlainFile, PlacementError> {
        Ok(PlainFile { path: self.take(parent, name)?, disk: Arc::clone(&self.disk) })
    }

    pub(crate) fn ephemeral_file(&mut self, parent: &Directory, name: &str) -> Result<EphemeralFile, PlacementError> {
        Ok(EphemeralFile { path: self.take(parent, name)?, disk: Arc::clone(&self.disk) })
    }

    pub(crate) fn stored<T: Record>(&mut self, parent: &Directory, name: &str) -> Result<Stored<T>, PlacementError> {
        Ok(Stored::new(Arc::clone(&self.disk), self.take(parent, name)?))
    }

    pub(crate) fn two_generations<T: Record>(
        &mut self,
        parent: &Directory,
        name: &str,
    ) -> Result<TwoGenerations<T>, PlacementError> {
        self.take_pair(parent, name)?;
        Ok(TwoGenerations::new(Arc::clone(&self.disk), &parent.path, name)?)
    }

    pub(crate) fn journal(&mut self, parent: &Directory, name: &str) -> Result<Generations, PlacementError> {
        self.take_pair(parent, name)?;
        let site = crate::journal::JOURNAL_LOAD_SITE;
        Ok(Generations::new(Arc::clone(&self.disk), &parent.path, name, JOURNAL_FORMAT, site)?)
    }

    fn take_pair(&mut self, parent: &Directory, name: &str) -> Result<(), PlacementError> {
        self.take(parent, &format!("{name}.0"))?;
        self.take(parent, &format!("{name}.1"))?;
        Ok(())
    }

    fn take(&mut self, parent: &Directory, name: &str) -> Result<DiskPath, PlacementError> {
        let path = parent.path.child(name)?;
        if self.taken.contains(&path) {
            return Err(PlacementError::Taken { path });
        }
        self.taken.push(path.clone());
        Ok(path)
    }
}

/// A tree that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("two parts of the tree are placed at {path}")]
    Taken { path: DiskPath },
}
