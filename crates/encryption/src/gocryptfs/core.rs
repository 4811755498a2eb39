//! [`Core`]: what the backend does, step by step, on a thread that may block. One step at a time.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polis_secret::Secret32;
use polis_storage::data::{DataError, DataTree, Found, UnlockKeys};
use polis_storage::{
    Action, DIRECTORY_MODE, DataGate, Disk, DiskError, GuardedDisk, Layout, LoadError, PartitionMarker, durable,
};
use tokio::sync::watch;

use super::mounted::Mounted;
use super::place::Place;
use super::slots::Slots;
use super::tools::Tools;
use super::{BACKEND, tool_failed, unavailable};
use crate::derive::{Purpose, derive};

/// The backend without its asynchronous face.
pub(super) struct Core {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    /// What is below the mount.
    tree: DataTree,
    /// Open while the mount is there, for `tree`; the other gate is for all others and opens last.
    pub(super) inner_gate: DataGate,
    pub(super) gate: DataGate,
    pub(super) tools: Tools,
    pub(super) lost: watch::Sender<Option<String>>,
    state: Mutex<State>,
}

/// What changes from step to step.
#[derive(Default)]
pub(super) struct State {
    pub(super) mounted: Option<Mounted>,
    version_checked: bool,
}

impl Core {
    pub(super) fn new(disk: Arc<dyn Disk>, gate: DataGate, tools: Tools, lost: watch::Sender<Option<String>>) -> Self {
        let inner_gate = DataGate::closed();
        let guarded = Arc::new(GuardedDisk::new(Arc::clone(&disk), inner_gate.clone()));
        Self {
            layout: Layout::new(Arc::clone(&disk)),
            tree: DataTree::new(guarded, BACKEND),
            disk,
            inner_gate,
            gate,
            tools,
            lost,
            state: Mutex::default(),
        }
    }

    /// Full path of the partition, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.layout.data.directory.full_path()
    }

    /// The key of a slot.
    pub(super) fn key(&self, keys: Option<&UnlockKeys>) -> Result<Secret32, DataError> {
        let keys = keys.ok_or_else(|| DataError::WrongKeys { path: self.path(), backend: BACKEND })?;
        Ok(derive(keys, Purpose::Gocryptfs))
    }

    pub(super) fn prepare(&self) -> Result<Found, DataError> {
        let mut state = self.lock();
        self.clear_stale_mounts(&mut state)?;
        let encrypted = &self.layout.encrypted;
        if let Some(marker) = encrypted.partition.peek().map_err(|source| self.unreadable(source))? {
            return Ok(Found::Formatted { owner: Some(marker.node_id) });
        }
        if state.is_alive() {
            // Its format was cut off by an error in this process.
            return Ok(Found::HalfFormatted);
        }
        if let Some(path) = self.foreign()? {
            return Ok(Found::Foreign { path: self.disk.full_path(&path) });
        }
        Ok(if encrypted.directory.exists()? { Found::HalfFormatted } else { Found::Nothing })
    }

    pub(super) fn clear_left_mount(&self) -> Result<(), DataError> {
        self.clear_stale_mounts(&mut self.lock())
    }

    pub(super) fn format(&self, owner: &str, key: &Secret32) -> Result<(), DataError> {
        let mut state = self.lock();
        let place = self.ready(&mut state)?;
        let slots = self.slots(&place);
        let encrypted = &self.layout.encrypted;
        if let Some(marker) = encrypted.partition.load().map_err(|source| self.unreadable(source))? {
            self.tree.check_owner(marker, owner)?;
            return slots.opened_by(key)?.map(drop).ok_or_else(|| slots.wrong_keys());
        }
        if !state.is_alive() {
            if let Some(found) = self.foreign()? {
                let directory = encrypted.directory.full_path();
                return Err(DataError::ForeignContent { directory, found: self.disk.full_path(&found) });
            }
            encrypted.directory.create("data/gocryptfs/directory")?;
            let names: Vec<&str> =
                [&encrypted.cipher, &encrypted.work].iter().filter_map(|it| it.path().name()).collect();
            let parent = encrypted.directory.path();
            durable::create_siblings(&*self.disk, "data/gocryptfs/directories", parent, &names, DIRECTORY_MODE)?;
            encrypted.directory.sweep()?;
            // A key of an attempt that was cut off and that nobody has any more opens nothing: what it made is known to be
            // empty, and is made anew.
            if slots.opened_by(key)?.is_none() {
                slots.forget()?;
                encrypted.cipher.clear()?;
                slots.initialize(key)?;
            }
            self.mount(&mut state, &place, key)?;
        }
        self.tree.format(owner)?;
        let marker = PartitionMarker { node_id: owner.to_owned(), backend: BACKEND.to_owned() };
        let written = encrypted.partition.store(&marker, "data/gocryptfs/partition");
        written.map_err(|source| DataError::Finish { path: self.path(), source })
    }

    pub(super) fn open(&self, owner: &str, key: &Secret32) -> Result<(), DataError> {
        let mut state = self.lock();
        let place = self.ready(&mut state)?;
        let encrypted = &self.layout.encrypted;
        let marker = encrypted.partition.load().map_err(|source| self.unreadable(source))?;
        let marker = marker.ok_or_else(|| DataError::NotFormatted { path: encrypted.directory.full_path() })?;
        self.tree.check_owner(marker, owner)?;
        let fresh = !state.is_alive();
        if fresh {
            for path in encrypted.directory.sweep()? {
                tracing::info!("removed {}: a write that was interrupted had left it", path.display());
            }
            if let Some(found) = self.foreign_at_mount_point()? {
                let found = self.disk.full_path(&found);
                return Err(DataError::ForeignContent { directory: self.path(), found });
            }
            self.mount(&mut state, &place, key)?;
        }
        if let Err(error) = self.tree.open(owner).and_then(|()| self.keep_in_use(&mut state)) {
            if fresh {
                self.unmount(&mut state, &place)?;
            }
            return Err(error);
        }
        self.gate.set_open();
        Ok(())
    }

    /// Works on the key slots, whether the partition is open or not.
    pub(super) fn with_slots<T>(&self, work: impl FnOnce(&Slots<'_>) -> Result<T, DataError>) -> Result<T, DataError> {
        let mut state = self.lock();
        self.check_tools(&mut state)?;
        let place = Place::find(&self.layout)?;
        let slots = self.slots(&place);
        if slots.present()?.is_empty() {
            return Err(DataError::NotFormatted { path: self.layout.encrypted.directory.full_path() });
        }
        work(&slots)
    }

    pub(super) fn close(&self) -> Result<(), DataError> {
        let mut state = self.lock();
        self.gate.set_closed();
        if state.mounted.is_none() {
            return Ok(());
        }
        let place = Place::find(&self.layout)?;
        self.unmount(&mut state, &place)
    }

    /// Holds a file open as long as the partition is: gocryptfs does not even try to unmount then.
    fn keep_in_use(&self, state: &mut State) -> Result<(), DataError> {
        let path = self.layout.data.partition.full_path();
        let marker = File::open(&path).map_err(|source| DiskError { action: Action::Read, path, source })?;
        match &mut state.mounted {
            Some(mounted) => {
                mounted.hold_file(marker.into()).map_err(|error| tool_failed("holding", &self.path(), error))
            }
            None => Ok(()),
        }
    }

    /// What each operation that mounts begins with.
    fn ready(&self, state: &mut State) -> Result<Place, DataError> {
        self.check_tools(state)?;
        self.clear_stale_mounts(state)?;
        Ok(Place::find(&self.layout)?)
    }

    fn check_tools(&self, state: &mut State) -> Result<(), DataError> {
        let look = self.tools.look();
        let look = look.and_then(|()| if state.version_checked { Ok(()) } else { self.tools.check_version() });
        look.map_err(|error| unavailable(&self.path(), error))?;
        state.version_checked = true;
        Ok(())
    }

    pub(super) fn slots<'a>(&'a self, place: &'a Place) -> Slots<'a> {
        Slots { disk: &*self.disk, encrypted: &self.layout.encrypted, place, tools: &self.tools }
    }

    fn unreadable(&self, source: LoadError) -> DataError {
        DataError::Marker { path: self.layout.encrypted.directory.full_path(), source }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn is_alive(&self) -> bool {
        self.mounted.as_ref().is_some_and(Mounted::is_alive)
    }
}
