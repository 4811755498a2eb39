//! [`DeviceBackends`]: what can protect the data of a node that has a device for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_storage::journal::StorageSecurity;
use polis_storage::{DataBackends, DataGate, DataPartition, DataUnavailable, Disk, GuardedDisk};

use super::LuksData;

/// The backends on one device: a partition, a whole disk, or an image file.
pub struct DeviceBackends {
    disk: Arc<GuardedDisk>,
    insecure: Arc<LuksData>,
    encrypted: Arc<LuksData>,
    authenticated: Arc<LuksData>,
}

impl DeviceBackends {
    /// The backends on `device`, for the root on `disk`. Changes nothing.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, device: &Path) -> Self {
        let gate = DataGate::closed();
        let backend = |security| Arc::new(LuksData::new(Arc::clone(&disk), gate.clone(), device.to_owned(), security));
        Self {
            insecure: backend(StorageSecurity::Insecure),
            encrypted: backend(StorageSecurity::Encrypted),
            authenticated: backend(StorageSecurity::AuthenticatedEncrypted),
            disk: Arc::new(GuardedDisk::new(Arc::clone(&disk), gate)),
        }
    }

    /// The disk for everybody but the backends: nothing below `data` is there while the chosen partition is not open.
    #[must_use]
    pub fn disk(&self) -> Arc<GuardedDisk> {
        Arc::clone(&self.disk)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        self.insecure.core.device.clone()
    }

    fn of(&self, security: StorageSecurity) -> &Arc<LuksData> {
        match security {
            StorageSecurity::Insecure => &self.insecure,
            StorageSecurity::Encrypted => &self.encrypted,
            StorageSecurity::AuthenticatedEncrypted => &self.authenticated,
        }
    }
}

impl DataBackends for DeviceBackends {
    fn choose(&self, security: StorageSecurity) -> Result<Arc<dyn DataPartition>, DataUnavailable> {
        let chosen = self.of(security);
        chosen.available()?;
        Ok(chosen.clone())
    }

    fn all(&self) -> Vec<Arc<dyn DataPartition>> {
        // They look at the same device and see the same.
        vec![self.authenticated.clone()]
    }
}
