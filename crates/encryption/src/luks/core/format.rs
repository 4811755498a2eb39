//! Formatting: from a blank device to a partition that is formatted, and again from wherever that was cut off.

use std::os::unix::fs::PermissionsExt as _;

use polis_disks::Device;
use polis_fault::point;
use polis_storage::data::{DataError, ProgressSender, UnlockKeys, report};
use polis_storage::journal::{FormatPermit, StorageSecurity};
use polis_storage::{Action, DIRECTORY_MODE, DiskError};

use super::{Core, State, shown};
use crate::luks::commands;
use crate::luks::header::token;
use crate::luks::look::Look;
use crate::luks::marker::Marker;
use crate::luks::names::{LABEL, UNFINISHED_LABEL};
use crate::luks::problem::Problem;

/// Where it passes its fault points.
const FORMAT: &str = "data/luks/format";

impl Core {
    pub(in crate::luks) fn format(
        &self,
        _permit: &FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        let key = self.key(keys)?;
        let mut state = self.lock();
        let device = self.open_device()?;
        self.clear_leftovers(&mut state, &device)?;
        if state.mounted {
            // Its format was cut off by an error in this process, or is done.
            return self.finish_format(&device, owner);
        }
        let finished = match self.look(&device)? {
            Look::Blank => false,
            Look::Begun { owner: begun } => self.check_owner(&begun, owner).map(|()| false)?,
            Look::UnfinishedXfs { uuid } => self.check_xfs(uuid, owner).map(|()| false)?,
            Look::Xfs { uuid } => self.check_xfs(uuid, owner).map(|()| true)?,
            Look::Luks { owner: begun, .. } => {
                self.check_owner(&begun, owner)?;
                self.metadata(&device)?.finished_for.is_some()
            }
            Look::Foreign(content) => {
                let found = shown(&self.device, &content.to_string());
                return Err(DataError::ForeignContent { directory: self.layout.data.directory.full_path(), found });
            }
        };
        if finished {
            // The keys must be the right ones, too.
            return match self.security {
                StorageSecurity::Insecure => Ok(()),
                StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => {
                    if self.slot_of(&key)?.is_some() { Ok(()) } else { Err(self.wrong_keys()) }
                }
            };
        }
        self.check_fit(&device)?;
        self.format_stack(&mut state, &device, owner, &key, progress)?;
        self.finish_format(&device, owner)
    }

    /// From nothing to an empty file system that is mounted.
    fn format_stack(
        &self,
        state: &mut State,
        device: &Device,
        owner: &str,
        key: &[u8],
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        let writable = Device::open_exclusive(&self.device).map_err(|error| self.device_failed(error))?;
        let stack = self.stack(device)?;
        point(FORMAT, "begin");
        let marker = Marker { owner: owner.to_owned() };
        marker.write(&writable).map_err(|error| self.device_failed(error))?;
        point(FORMAT, "marked");
        // The programs want it for themselves.
        drop(writable);
        let mut size = None;
        let (source, attached) = match commands::luks_format(&self.device, owner, self.security) {
            None => stack.block_device().map_err(|problem| self.problem("formatting", problem))?,
            Some(format) => {
                report(progress, "making the encrypted volume");
                self.run("making the encrypted volume", &format, key)?;
                point(FORMAT, "luks");
                let writable = Device::open_exclusive(&self.device).map_err(|error| self.device_failed(error))?;
                Marker::erase(&writable).map_err(|error| self.device_failed(error))?;
                drop(writable);
                point(FORMAT, "unmarked");
                if self.security == StorageSecurity::AuthenticatedEncrypted {
                    size = Some(self.write_first_part(&stack, owner, key, progress)?);
                    point(FORMAT, "written");
                }
                (self.unlock(owner, key)?, None)
            }
        };
        report(progress, "making the file system");
        let label = match self.security {
            StorageSecurity::Insecure => UNFINISHED_LABEL,
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => LABEL,
        };
        self.run("making the file system", &commands::make_xfs(&source, owner, label, size), &[])?;
        point(FORMAT, "file-system");
        if self.security == StorageSecurity::Insecure {
            // Now the label says whose it is. Free space of a file system that nobody has mounted yet is ours to write to.
            let writable = Device::open_writable(&source).map_err(|error| self.device_failed(error))?;
            writable.sync().map_err(|error| self.device_failed(error))?;
            Marker::erase(&writable).map_err(|error| self.device_failed(error))?;
            point(FORMAT, "unmarked");
        }
        self.mount(state, &stack, &source)?;
        drop(attached);
        // The root directory of a new XFS can be read by everybody.
        let mode = std::fs::Permissions::from_mode(DIRECTORY_MODE);
        let set = std::fs::set_permissions(&stack.mount_point, mode);
        set.map_err(|source| DiskError { action: Action::CreateDirectory, path: stack.mount_point.clone(), source })?;
        point(FORMAT, "mounted");
        Ok(())
    }

    /// From a file system that is mounted to a partition that is formatted. May be repeated.
    fn finish_format(&self, device: &Device, owner: &str) -> Result<(), DataError> {
        self.tree.format(owner)?;
        point(FORMAT, "tree");
        match self.security {
            StorageSecurity::Insecure => {
                let mount_point = self.stack(device)?.mount_point;
                let labelled = std::fs::File::open(&mount_point).and_then(|directory| {
                    polis_sys::set_file_system_label(std::os::fd::AsFd::as_fd(&directory), LABEL)?;
                    Ok(rustix::fs::syncfs(&directory)?)
                });
                labelled.map_err(|source| self.problem("formatting", Problem::Kernel { at: mount_point, source }))?;
            }
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => {
                if self.metadata(device)?.finished_for.is_none() {
                    let import = commands::import_token(&self.device);
                    self.run("marking the encrypted volume as finished", &import, token(owner).as_bytes())?;
                }
            }
        }
        point(FORMAT, "done");
        Ok(())
    }
}
