//! The steps that operations are made of.

use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use polis_disks::{Device, DeviceError, meant_for_something_else};
use polis_storage::data::{DataError, KeyOperation, Progress, ProgressSender, UnlockKeys};
use polis_storage::journal::StorageSecurity;
use polis_storage::{Action, DiskError};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{Core, LEAST_SIZE, State, backend};
use crate::child::{Finished, ToolError};
use crate::derive::{Purpose, derive};
use crate::luks::commands::{self, Invocation};
use crate::luks::extent::{self, Growing};
use crate::luks::header::unlocked_slot;
use crate::luks::integrity;
use crate::luks::look::Look;
use crate::luks::names::{luks_uuid, mapping, xfs_uuid};
use crate::luks::problem::Problem;
use crate::luks::stack::Stack;
use crate::luks::tools::is_wrong_key;

impl Core {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open_device(&self) -> Result<Device, DataError> {
        Device::open(&self.device).map_err(|error| self.device_failed(error))
    }

    pub(super) fn look(&self, device: &Device) -> Result<Look, DataError> {
        if device.size() < LEAST_SIZE {
            let problem = Problem::TooSmall { device: self.device.clone(), size: device.size(), least: LEAST_SIZE };
            return Err(self.problem("looking at the device", problem));
        }
        Look::at(device).map_err(|error| self.device_failed(error))
    }

    pub(super) fn stack<'a>(&'a self, device: &'a Device) -> Result<Stack<'a>, DataError> {
        let root = self.layout.directory.full_path();
        let root =
            std::fs::canonicalize(&root).map_err(|source| DiskError { action: Action::Examine, path: root, source })?;
        let mount_point = self.layout.data.directory.path().under(&root);
        Ok(Stack { places: &self.places, device, mount_point })
    }

    /// Takes apart what a dead process has left, so that each start begins with the device and with its keys. What this process has
    /// mounted stays, if it is still there.
    pub(super) fn clear_leftovers(&self, state: &mut State, device: &Device) -> Result<(), DataError> {
        let mounted =
            self.stack(device)?.is_mounted().map_err(|problem| self.problem("looking at the mounts", problem))?;
        if state.mounted && mounted {
            return Ok(());
        }
        if state.mounted {
            self.gate.set_closed();
        }
        self.take_apart(state, device)
    }

    /// Unmounts, and removes the mappings.
    pub(super) fn take_apart(&self, state: &mut State, device: &Device) -> Result<(), DataError> {
        let stack = self.stack(device)?;
        self.gate.set_closed();
        // It has the mapping open.
        state.growing = None;
        stack.unmount().map_err(|problem| self.problem("unmounting", problem))?;
        state.mounted = false;
        self.inner_gate.set_closed();
        self.close_mappings(&stack)
    }

    pub(super) fn close_mappings(&self, stack: &Stack<'_>) -> Result<(), DataError> {
        loop {
            let names = stack.mappings().map_err(|problem| self.problem("closing", problem))?;
            let Some(name) = names.first() else { return Ok(()) };
            self.run("closing the encrypted volume", &commands::close(name), &[])?;
        }
    }

    /// Opens the encrypted volume; the device that it is then.
    pub(super) fn unlock(&self, owner: &str, key: &[u8]) -> Result<PathBuf, DataError> {
        self.unlock_by(&commands::open(&self.device, &mapping(luks_uuid(owner))), owner, key)
    }

    /// Opens an authenticated volume as large as its device allows: twice, if that has grown. `offset` is where the volume begins.
    pub(super) fn unlock_whole(
        &self,
        stack: &Stack<'_>,
        owner: &str,
        key: &[u8],
        offset: Option<u64>,
    ) -> Result<PathBuf, DataError> {
        let source = self.unlock(owner, key)?;
        let could_grow = |offset| -> Result<bool, DeviceError> {
            let provided = integrity::provided(&Device::open_direct(&self.device)?, offset)?;
            let size = Device::open(&source)?.size();
            Ok(provided.is_some_and(|provided| provided > size))
        };
        match offset.map(could_grow).transpose() {
            Ok(None | Some(false)) => Ok(source),
            Ok(Some(true)) => {
                self.close_mappings(stack)?;
                tracing::info!("the device of the data partition has grown, and the encrypted volume follows");
                self.unlock(owner, key)
            }
            // As large as it was it is as good as before.
            Err(error) => {
                let cause = error.cause().map(ToString::to_string).unwrap_or_default();
                tracing::warn!("it cannot be seen whether the encrypted volume could grow: {error}: {cause}");
                Ok(source)
            }
        }
    }

    fn unlock_by(&self, command: &Invocation, owner: &str, key: &[u8]) -> Result<PathBuf, DataError> {
        match self.tool(command, key)? {
            Ok(_) => Ok(self.mapping_path(owner)),
            Err(error) if is_wrong_key(&error) => Err(self.wrong_keys()),
            Err(error) => Err(self.tool_failed("opening the encrypted volume", error)),
        }
    }

    /// Writes the first part of an authenticated volume, which is not open, and says how long that part is.
    pub(super) fn write_first_part(
        &self,
        stack: &Stack<'_>,
        owner: &str,
        key: &[u8],
        progress: &ProgressSender,
    ) -> Result<u64, DataError> {
        let open = commands::open_without_journal(&self.device, &mapping(luks_uuid(owner)));
        let source = self.unlock_by(&open, owner, key)?;
        let upper = Device::open_direct(&source).map_err(|error| self.device_failed(error))?;
        let first = extent::first_part(upper.size());
        let goes_on = |position| {
            let step = "writing the first part of the data partition";
            progress.send_replace(Progress { step, done: position, total: Some(first) });
            true
        };
        extent::write_zeroes(&upper, 0, first, goes_on).map_err(|error| self.device_failed(error))?;
        drop(upper);
        self.close_mappings(stack)?;
        Ok(first)
    }

    pub(super) fn mount(&self, state: &mut State, stack: &Stack<'_>, source: &Path) -> Result<(), DataError> {
        self.layout.data.directory.create("data/luks/mount-point")?;
        if self.first_below_mount_point()?.is_some() {
            let problem = Problem::MountPointInUse { at: stack.mount_point.clone() };
            return Err(self.problem("mounting", problem));
        }
        stack.mount(source).map_err(|problem| self.problem("mounting", problem))?;
        state.mounted = true;
        self.inner_gate.set_open();
        Ok(())
    }

    pub(super) fn first_below_mount_point(&self) -> Result<Option<String>, DataError> {
        match self.disk.list(self.layout.data.directory.path()) {
            Err(error) if error.is_absent() => Ok(None),
            names => Ok(names?.into_iter().next()),
        }
    }

    pub(super) fn start_growing(&self, device: &Device, owner: &str) -> Result<Option<Growing>, DataError> {
        let mount_point = self.stack(device)?.mount_point;
        let (source, write_before) = match self.security {
            // A file cannot grow, and a partition has grown before it was opened.
            StorageSecurity::Insecure => (self.device.clone(), false),
            StorageSecurity::Encrypted => (self.mapping_path(owner), false),
            StorageSecurity::AuthenticatedEncrypted => (self.mapping_path(owner), true),
        };
        let started = Growing::start(source, mount_point.clone(), write_before);
        let started = started.map_err(|source| self.problem("opening", Problem::Kernel { at: mount_point, source }))?;
        Ok(Some(started))
    }

    fn mapping_path(&self, owner: &str) -> PathBuf {
        self.places.dev.join("mapper").join(mapping(luks_uuid(owner)))
    }

    /// Fails if the device is too small or meant for something else, or if somebody uses it.
    pub(super) fn check_fit(&self, device: &Device) -> Result<(), DataError> {
        let kind = meant_for_something_else(&self.places, device);
        let kind = kind.map_err(|error| DataError::Tool {
            action: "looking at the partition table",
            path: self.device.clone(),
            backend: backend(self.security),
            source: Box::new(error),
        })?;
        if let Some(kind) = kind {
            let problem = Problem::OtherKind { device: self.device.clone(), kind: kind.to_string() };
            return Err(self.problem("formatting", problem));
        }
        self.stack(device)?.check_free().map_err(|problem| self.problem("formatting", problem))
    }

    pub(super) fn check_owner(&self, found: &str, owner: &str) -> Result<(), DataError> {
        if found == owner {
            return Ok(());
        }
        Err(DataError::OtherNode { path: self.device.clone(), found: found.to_owned(), expected: owner.to_owned() })
    }

    pub(super) fn check_xfs(&self, uuid: Uuid, owner: &str) -> Result<(), DataError> {
        match self.security {
            StorageSecurity::Insecure if uuid == xfs_uuid(owner) => Ok(()),
            StorageSecurity::Insecure => Err(DataError::OtherNode {
                path: self.device.clone(),
                found: "that cannot be told".to_owned(),
                expected: owner.to_owned(),
            }),
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => Err(DataError::OtherBackend {
                path: self.device.clone(),
                found: backend(StorageSecurity::Insecure).to_owned(),
                expected: backend(self.security),
            }),
        }
    }

    /// Fails unless there is a LUKS header of ours; what is in its slots is asked next.
    pub(super) fn check_ours(&self) -> Result<(), DataError> {
        let device = self.open_device()?;
        match self.look(&device)? {
            Look::Luks { .. } => Ok(()),
            Look::Blank | Look::Begun { .. } | Look::UnfinishedXfs { .. } | Look::Xfs { .. } | Look::Foreign(_) => {
                Err(DataError::NotFormatted { path: self.device.clone() })
            }
        }
    }

    /// The slot that is opened by a key.
    pub(super) fn slot_of(&self, key: &[u8]) -> Result<Option<u32>, DataError> {
        match self.tool(&commands::test_key(&self.device), key)? {
            Ok(Finished { output, .. }) => unlocked_slot(&output).map(Some).ok_or_else(|| {
                self.problem(
                    "testing a key",
                    Problem::Kernel {
                        at: self.device.clone(),
                        source: std::io::Error::other(format!("cryptsetup does not name the slot: {output}")),
                    },
                )
            }),
            Err(error) if is_wrong_key(&error) => Ok(None),
            Err(error) => Err(self.tool_failed("testing a key", error)),
        }
    }

    /// The key of a slot; empty without encryption, which has none.
    pub(super) fn key(&self, keys: Option<&UnlockKeys>) -> Result<Zeroizing<Vec<u8>>, DataError> {
        match (self.security, keys) {
            (StorageSecurity::Insecure, None) => Ok(Zeroizing::default()),
            (StorageSecurity::Insecure, Some(_)) => Err(self.not_supported(KeyOperation::Unlock)),
            (StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted, Some(keys)) => {
                Ok(Zeroizing::new(derive(keys, Purpose::Luks).expose().to_vec()))
            }
            (StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted, None) => Err(self.wrong_keys()),
        }
    }

    pub(super) fn slot_key(&self, operation: KeyOperation, keys: &UnlockKeys) -> Result<Zeroizing<Vec<u8>>, DataError> {
        match self.security {
            StorageSecurity::Insecure => Err(self.not_supported(operation)),
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => self.key(Some(keys)),
        }
    }

    /// Runs a program; the outer error is that it is not there.
    pub(super) fn tool(&self, invocation: &Invocation, input: &[u8]) -> Result<Result<Finished, ToolError>, DataError> {
        self.tools.run(invocation, input, self.security).map_err(|source| DataError::Unavailable {
            path: self.device.clone(),
            backend: backend(self.security),
            source,
        })
    }

    /// Runs a program that has to succeed.
    pub(super) fn run(
        &self,
        action: &'static str,
        invocation: &Invocation,
        input: &[u8],
    ) -> Result<Finished, DataError> {
        self.tool(invocation, input)?.map_err(|error| self.tool_failed(action, error))
    }

    pub(super) fn tool_failed(&self, action: &'static str, error: ToolError) -> DataError {
        let (path, backend) = (self.device.clone(), backend(self.security));
        DataError::Tool { action, path, backend, source: Box::new(error) }
    }

    pub(super) fn problem(&self, action: &'static str, problem: Problem) -> DataError {
        let (path, backend) = (self.device.clone(), backend(self.security));
        DataError::Tool { action, path, backend, source: Box::new(problem) }
    }

    /// A failure of the device is one of the disk: what cures it is the same.
    pub(super) fn device_failed(&self, error: DeviceError) -> DataError {
        let (action, path, source) = match error {
            DeviceError::Access { path, source } => (Action::Examine, path, source),
            DeviceError::Read { path, source, .. } => (Action::Read, path, source),
            DeviceError::Write { path, source, .. } => (Action::CreateFile, path, source),
            DeviceError::Sync { path, source } => (Action::SyncFile, path, source),
            error @ (DeviceError::InUse { .. } | DeviceError::NotADevice { .. } | DeviceError::SectorSize { .. }) => {
                return DataError::Tool {
                    action: "looking at the device",
                    path: self.device.clone(),
                    backend: backend(self.security),
                    source: Box::new(error),
                };
            }
        };
        DataError::Disk(DiskError { action, path, source })
    }

    pub(super) fn wrong_keys(&self) -> DataError {
        DataError::WrongKeys { path: self.device.clone(), backend: backend(self.security) }
    }

    pub(super) fn not_supported(&self, operation: KeyOperation) -> DataError {
        DataError::NotSupported { operation, backend: backend(self.security) }
    }
}
