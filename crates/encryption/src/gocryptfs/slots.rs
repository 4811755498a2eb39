//! Key slots: configuration files of gocryptfs, each of which has the master key encrypted under one key.
//!
//! gocryptfs changes a file in place and leaves its own temporary beside it. So it never works on a slot: it works on a
//! copy below `encrypted/work`, and the slot is written from that as each durable file is, whole or not at all. The
//! master key itself is only ever in the memory of gocryptfs.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use polis_fault::point;
use polis_secret::Secret32;
use polis_storage::data::DataError;
use polis_storage::{Action, Disk, DiskError, DiskPath, Encrypted, FILE_MODE, PlainFile};
use polis_sys::ExitStatus;

use super::place::Place;
use super::tools::Tools;
use super::{BACKEND, lines, tool_failed, unavailable};
use crate::child::ToolError;

/// Longest configuration file: gocryptfs writes some 400 bytes.
const SLOT_LIMIT: usize = 16 * 1024;
/// Where gocryptfs works, below `encrypted/work`.
const WORK_FILE: &str = "configuration";
/// Cost of the key derivation of gocryptfs, as a power of two: the least that it takes, since the key that goes in is
/// random and cannot be guessed. A node starts 60 ms sooner than with the default of 16.
const COST: &str = "10";
/// What gocryptfs exits with when the key is not the one of the file.
pub(super) const WRONG_KEY: ExitStatus = ExitStatus::Exited { code: 12 };

/// How Go says that the disk or the quota is full.
const NO_ROOM: [&str; 2] = ["no space left on device", "disk quota exceeded"];

/// The two slots of one partition.
pub(super) struct Slots<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) encrypted: &'a Encrypted,
    pub(super) place: &'a Place,
    pub(super) tools: &'a Tools,
}

impl<'a> Slots<'a> {
    /// The slots that are there.
    pub(super) fn present(&self) -> Result<Vec<&'a PlainFile>, DataError> {
        let mut present = Vec::new();
        for slot in &self.encrypted.slots {
            if self.disk.metadata(slot.path())?.is_some() {
                present.push(slot);
            }
        }
        Ok(present)
    }

    /// Makes the file system in the empty directory of the ciphertext, opened by `key`, in the first slot. The slot is
    /// written last: as long as it is absent, nothing was made.
    ///
    /// Names are encrypted alike in all directories (`-deterministic-names`). Otherwise gocryptfs keeps a random value in a
    /// file in each directory and does not sync it: a power cut soon after a directory was made would leave that file
    /// empty, and with it nothing in the directory could be opened any more.
    pub(super) fn initialize(&self, key: &Secret32) -> Result<(), DataError> {
        self.clear_work()?;
        point("data/gocryptfs/initialize", "begin");
        let arguments = self.arguments("-init", &["-deterministic-names", "-scryptn", COST]);
        let finished = self.run(arguments, &[key])?;
        finished.map_err(|error| self.failed("making the encrypted file system", error))?;
        point("data/gocryptfs/initialize", "done");
        let made = self.read_work()?;
        self.encrypted.slots[0].write(&made, "data/gocryptfs/slot")?;
        self.clear_work()
    }

    /// Whether a slot is opened by `key`.
    pub(super) fn opens(&self, slot: &PlainFile, key: &Secret32) -> Result<bool, DataError> {
        Ok(self.changed(slot, key, &Secret32::random())?.is_some())
    }

    /// The first slot that is opened by `key`. One that is damaged matters only if the other does not open.
    pub(super) fn opened_by(&self, key: &Secret32) -> Result<Option<&'a PlainFile>, DataError> {
        let mut problem = None;
        for slot in self.present()? {
            match self.opens(slot, key) {
                Ok(true) => return Ok(Some(slot)),
                Ok(false) => {}
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        problem.map_or(Ok(None), Err)
    }

    /// Has `new` open the partition too, in the slot that `existing` does not open.
    pub(super) fn add(&self, existing: &Secret32, new: &Secret32) -> Result<(), DataError> {
        if self.opened_by(new)?.is_some() {
            return Ok(());
        }
        let source = self.opened_by(existing)?.ok_or_else(|| self.wrong_keys())?;
        let changed = self.changed(source, existing, new)?.ok_or_else(|| self.wrong_keys())?;
        // Of the two slots it is the one that `existing` does not need.
        let [first, second] = &self.encrypted.slots;
        let target = if source.path() == first.path() { second } else { first };
        target.write(&changed, "data/gocryptfs/slot/add")?;
        if self.opens(target, new)? {
            return Ok(());
        }
        let (path, problem) = (target.full_path(), "it was written, and its key does not open it".to_owned());
        Err(DataError::Damaged { path, backend: BACKEND, problem })
    }

    /// Removes all slots but one that `remaining` opens, which must be there.
    pub(super) fn remove_others(&self, remaining: &Secret32) -> Result<(), DataError> {
        let kept = self.opened_by(remaining)?.ok_or_else(|| self.wrong_keys())?;
        for slot in self.present()? {
            if slot.path() != kept.path() {
                slot.remove("data/gocryptfs/slot/remove")?;
            }
        }
        Ok(())
    }

    /// Removes all slots: only of a format that was never finished.
    pub(super) fn forget(&self) -> Result<(), DataError> {
        for slot in self.present()? {
            slot.remove("data/gocryptfs/slot/forget")?;
        }
        Ok(())
    }

    /// Empties the directory that gocryptfs works in, and makes it if it is absent.
    pub(super) fn clear_work(&self) -> Result<(), DataError> {
        self.encrypted.work.create_ephemeral()?;
        Ok(self.encrypted.work.clear()?)
    }

    pub(super) fn wrong_keys(&self) -> DataError {
        DataError::WrongKeys { path: self.encrypted.directory.full_path(), backend: BACKEND }
    }

    /// The content of the slot as it would be with another key; none if `key` does not open it. The slot stays as it is.
    fn changed(&self, slot: &PlainFile, key: &Secret32, new: &Secret32) -> Result<Option<Vec<u8>>, DataError> {
        let Some(bytes) = slot.read(SLOT_LIMIT)? else {
            return Ok(None);
        };
        self.clear_work()?;
        self.disk.create_exclusive(&self.work_file(), FILE_MODE, &bytes)?;
        let changed = match self.run(self.arguments("-passwd", &[]), &[key, new])? {
            Ok(()) => Some(self.read_work()?),
            Err(ToolError::Failed { status: WRONG_KEY, .. }) => None,
            Err(error) => return Err(self.failed("changing a copy of a key slot", error)),
        };
        self.clear_work()?;
        Ok(changed)
    }

    fn arguments(&self, operation: &str, options: &[&str]) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["-q".into(), operation.into()];
        arguments.extend(options.iter().map(OsString::from));
        arguments.extend(["-config".into(), self.place.work.join(WORK_FILE).into()]);
        arguments.extend(["--".into(), self.place.cipher.clone().into()]);
        arguments
    }

    fn run(&self, arguments: Vec<OsString>, keys: &[&Secret32]) -> Result<Result<(), ToolError>, DataError> {
        let input = lines(keys);
        let finished =
            self.tools.run(arguments, &input).map_err(|error| unavailable(&self.place.mount_point, error))?;
        let program = Path::new("gocryptfs");
        Ok(finished.and_then(|finished| finished.success(program)).map(drop))
    }

    fn read_work(&self) -> Result<Vec<u8>, DataError> {
        Ok(self.disk.read(&self.work_file(), SLOT_LIMIT)?)
    }

    fn work_file(&self) -> DiskPath {
        self.encrypted.work.path().child(WORK_FILE).expect("the name is a valid one")
    }

    fn failed(&self, action: &'static str, error: ToolError) -> DataError {
        // Room that is missing is a failure of the disk like any other, and cured like any other.
        let full = matches!(&error, ToolError::Failed { complaint, .. } if NO_ROOM.iter().any(|text| complaint.contains(text)));
        if full {
            let (action, path) = (Action::CreateFile, self.encrypted.work.full_path());
            return DiskError { action, path, source: io::Error::new(io::ErrorKind::StorageFull, error) }.into();
        }
        tool_failed(action, &self.encrypted.directory.full_path(), error)
    }
}

/// Whether gocryptfs leaves a file of this name where it works: its temporary is there when it is killed.
pub(super) fn is_work_file(name: &str) -> bool {
    name.strip_prefix(WORK_FILE).is_some_and(|rest| rest.is_empty() || rest == ".tmp")
}
