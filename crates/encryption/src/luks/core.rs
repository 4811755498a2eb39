//! [`Core`]: what the backend does, step by step, on a thread that may block. One operation at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_disks::{Device, Places};
use polis_storage::data::{DataError, DataTree, Description, Found, ProgressSender, UnlockKeys, report};
use polis_storage::journal::StorageSecurity;
use polis_storage::{DataGate, DataUnavailable, Disk, GuardedDisk, Layout};

use super::extent::Growing;
use super::look::Look;
use super::tools::Tools;

/// Smallest device, in bytes: LUKS takes 16 MiB, tags and journal of an authenticated one some more, and an XFS is at least 300 MiB.
const LEAST_SIZE: u64 = 384 << 20;
/// How often it is looked whether the partition is still mounted, and works. Nobody unmounts it in ordinary life; whoever does is noticed
/// before much was written to the wrong place.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The backend without its asynchronous face.
pub(super) struct Core {
    pub(super) device: PathBuf,
    disk: Arc<dyn Disk>,
    layout: Layout,
    security: StorageSecurity,
    tools: Tools,
    places: Places,
    /// What is below the mount.
    tree: DataTree,
    /// Open while the mount is there, for `tree`; the other gate is for all others and opens last.
    inner_gate: DataGate,
    gate: DataGate,
    state: Mutex<State>,
}

/// What changes from operation to operation.
#[derive(Default)]
struct State {
    /// This process has mounted it.
    mounted: bool,
    /// The thread that has it grow.
    growing: Option<Growing>,
}

impl Core {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        gate: DataGate,
        device: PathBuf,
        security: StorageSecurity,
        tools: Tools,
    ) -> Self {
        let inner_gate = DataGate::closed();
        let guarded = Arc::new(GuardedDisk::new(Arc::clone(&disk), inner_gate.clone()));
        Self {
            layout: Layout::new(Arc::clone(&disk)),
            tree: DataTree::new(guarded, backend(security)),
            places: Places::default(),
            state: Mutex::default(),
            device,
            disk,
            security,
            tools,
            inner_gate,
            gate,
        }
    }

    pub(super) fn describe(&self) -> Description {
        let warning = match self.security {
            StorageSecurity::Insecure => Some(
                "data is stored without encryption: whoever can read this disk can read all of it, and take over the identity of the \
                 node",
            ),
            StorageSecurity::Encrypted => Some(
                "data is encrypted, but changes are not detected: whoever can write to this disk can damage it in ways that nobody \
                 notices",
            ),
            StorageSecurity::AuthenticatedEncrypted => None,
        };
        Description { backend: backend(self.security), storage_security: self.security, warning }
    }

    pub(super) fn available(&self) -> Result<(), DataUnavailable> {
        self.tools.look(self.security)
    }

    pub(super) fn prepare(&self, progress: &ProgressSender) -> Result<Found, DataError> {
        report(progress, "looking at the data device");
        let mut state = self.lock();
        let device = self.open_device()?;
        self.clear_leftovers(&mut state, &device)?;
        if !state.mounted
            && let Some(name) = self.first_below_mount_point()?
        {
            return Ok(Found::Foreign { path: self.layout.data.directory.full_path().join(name) });
        }
        Ok(match self.look(&device)? {
            Look::Blank => Found::Nothing,
            Look::Begun { .. } | Look::UnfinishedXfs { .. } => Found::HalfFormatted,
            Look::Xfs { .. } => Found::Formatted { owner: None },
            Look::Foreign(content) => Found::Foreign { path: shown(&self.device, &content.to_string()) },
            Look::Luks { owner, .. } => match self.metadata(&device)?.finished_for {
                Some(_) => Found::Formatted { owner: Some(owner) },
                None => Found::HalfFormatted,
            },
        })
    }

    pub(super) fn open(
        &self,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        report(progress, "opening the data device");
        let key = self.key(keys)?;
        let mut state = self.lock();
        let device = self.open_device()?;
        self.clear_leftovers(&mut state, &device)?;
        let fresh = !state.mounted;
        if fresh {
            let offset = self.check_formatted(&device, owner)?;
            let stack = self.stack(&device)?;
            stack.check_free().map_err(|problem| self.problem("opening", problem))?;
            let (source, attached) = match self.security {
                StorageSecurity::Insecure => {
                    stack.block_device().map_err(|problem| self.problem("opening", problem))?
                }
                StorageSecurity::Encrypted => (self.unlock(owner, &key)?, None),
                StorageSecurity::AuthenticatedEncrypted => (self.unlock_whole(&stack, owner, &key, offset)?, None),
            };
            if let Err(error) = self.mount(&mut state, &stack, &source) {
                self.close_mappings(&stack)?;
                return Err(error);
            }
            drop(attached);
        }
        if let Err(error) = self.tree.open(owner) {
            if fresh {
                self.take_apart(&mut state, &device)?;
            }
            return Err(error);
        }
        self.gate.set_open();
        if state.growing.is_none() {
            state.growing = self.start_growing(&device, owner)?;
        }
        Ok(())
    }

    /// Fails unless the device was formatted by this node for this backend. Returns where its encrypted part begins, if it has one.
    fn check_formatted(&self, device: &Device, owner: &str) -> Result<Option<u64>, DataError> {
        let not_formatted = || DataError::NotFormatted { path: self.device.clone() };
        match self.look(device)? {
            Look::Blank | Look::Begun { .. } | Look::UnfinishedXfs { .. } => Err(not_formatted()),
            Look::Xfs { uuid } => self.check_xfs(uuid, owner).map(|()| None),
            Look::Luks { owner: found, .. } => {
                self.check_owner(&found, owner)?;
                let metadata = self.metadata(device)?;
                metadata.finished_for.ok_or_else(not_formatted)?;
                match metadata.security {
                    Some(security) if security == self.security => Ok(metadata.offset),
                    other => Err(DataError::OtherBackend {
                        path: self.device.clone(),
                        found: other.map_or("another LUKS", backend).to_owned(),
                        expected: backend(self.security),
                    }),
                }
            }
            Look::Foreign(content) => Err(DataError::Damaged {
                path: self.device.clone(),
                backend: backend(self.security),
                problem: format!(
                    "it has no header of this node, but {content}; either it is another device, or the header was overwritten, and \
                     then what it held cannot be read any more"
                ),
            }),
        }
    }

    pub(super) fn close(&self) -> Result<(), DataError> {
        let mut state = self.lock();
        self.gate.set_closed();
        if !state.mounted {
            return Ok(());
        }
        let device = self.open_device()?;
        self.take_apart(&mut state, &device)
    }

    /// Waits until a mount of this process is gone or of no use any more, and says so.
    pub(super) async fn lost(&self) -> String {
        loop {
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn loss(&self) -> Option<String> {
        // Whoever holds the lock may be about to change what is mounted; it is looked at again.
        let state = self.state.try_lock().ok()?;
        if !state.mounted {
            return None;
        }
        let device = Device::open(&self.device);
        match device {
            Ok(device) => {
                let stack = self.stack(&device).ok()?;
                match stack.is_mounted() {
                    Ok(false) => Some(format!("{} is not mounted any more", self.device.display())),
                    Ok(true) if stack.has_shut_down() => Some(format!(
                        "the file system on {} has shut itself down, as it does when the disk fails or gives back what was changed on \
                         it; the log of the kernel says why",
                        self.device.display()
                    )),
                    Ok(true) | Err(_) => None,
                }
            }
            Err(error) => Some(format!("{} is gone: {error}", self.device.display())),
        }
    }
}

/// Name of a backend, as in the partition's marker.
pub(super) const fn backend(security: StorageSecurity) -> &'static str {
    match security {
        StorageSecurity::Insecure => "xfs",
        StorageSecurity::Encrypted => "luks",
        StorageSecurity::AuthenticatedEncrypted => "luks-authenticated",
    }
}

/// What was found is told where there is room for a path only.
fn shown(device: &Path, content: &str) -> PathBuf {
    PathBuf::from(format!("{} ({content})", device.display()))
}

mod format;
mod keys;
mod metadata;
mod parts;
