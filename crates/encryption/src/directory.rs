//! [`DirectoryBackends`]: what can protect the data of a node that lives in a directory of some host.

use std::sync::{Arc, Mutex, PoisonError};

use polis_storage::journal::StorageSecurity;
use polis_storage::{DataBackends, DataGate, DataPartition, DataUnavailable, Disk, GuardedDisk, Layout, PlainData};

use crate::gocryptfs::GocryptfsData;

/// The backends below one root: a plain directory, or encrypted files.
///
/// | protection | backend |
/// |---|---|
/// | insecure | plain |
/// | encrypted | gocryptfs, which authenticates too |
/// | authenticated and encrypted | gocryptfs |
pub struct DirectoryBackends {
    disk: Arc<GuardedDisk>,
    plain: Arc<PlainData>,
    gocryptfs: Arc<GocryptfsData>,
    /// Whether the gate has been closed for an encrypted backend already.
    encrypted_chosen: Mutex<bool>,
}

impl DirectoryBackends {
    /// The backends on this disk. Looks whether there is anything encrypted; changes nothing.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        let encrypted = Layout::new(Arc::clone(&disk)).encrypted.directory;
        // As long as nothing is encrypted and nobody has asked for it, `data` is an ordinary directory.
        let gate = match encrypted.exists() {
            Ok(false) => DataGate::open(),
            Ok(true) | Err(_) => DataGate::closed(),
        };
        Self::with(disk.clone(), gate.clone(), GocryptfsData::new(disk, gate))
    }

    fn with(disk: Arc<dyn Disk>, gate: DataGate, gocryptfs: GocryptfsData) -> Self {
        Self {
            disk: Arc::new(GuardedDisk::new(Arc::clone(&disk), gate.clone())),
            plain: Arc::new(PlainData::with_gate(disk, gate)),
            gocryptfs: Arc::new(gocryptfs),
            encrypted_chosen: Mutex::new(false),
        }
    }

    /// The disk for everybody but the backends: nothing below `data` is there while the chosen partition is not open.
    #[must_use]
    pub fn disk(&self) -> Arc<GuardedDisk> {
        Arc::clone(&self.disk)
    }
}

impl DataBackends for DirectoryBackends {
    fn choose(&self, security: StorageSecurity) -> Result<Arc<dyn DataPartition>, DataUnavailable> {
        match security {
            StorageSecurity::Insecure => Ok(self.plain.clone()),
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => {
                self.gocryptfs.available().map_err(|unavailable| DataUnavailable { security, ..unavailable })?;
                let mut chosen = self.encrypted_chosen.lock().unwrap_or_else(PoisonError::into_inner);
                if !*chosen {
                    self.disk.gate().set_closed();
                    *chosen = true;
                }
                Ok(self.gocryptfs.clone())
            }
        }
    }

    fn all(&self) -> Vec<Arc<dyn DataPartition>> {
        vec![self.plain.clone(), self.gocryptfs.clone()]
    }
}

#[cfg(test)]
mod tests {
    use polis_storage::{DiskPath, HostDisk};

    use super::*;

    #[test]
    fn what_this_host_cannot_do_is_refused_and_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(root.path()).unwrap());
        let gate = DataGate::open();
        let without = GocryptfsData::with_programs(disk.clone(), gate.clone(), vec![root.path().to_owned()]);
        let backends = DirectoryBackends::with(disk, gate, without);
        assert_eq!(backends.choose(StorageSecurity::Insecure).unwrap().describe().backend, "plain");
        for security in [StorageSecurity::Encrypted, StorageSecurity::AuthenticatedEncrypted] {
            let Err(error) = backends.choose(security) else { panic!("{security} was not refused") };
            assert_eq!(error.security, security);
            assert!(
                error.to_string().starts_with(&format!("this host cannot keep a data partition that is {security}: "))
            );
        }
        let names: Vec<_> = backends.all().iter().map(|backend| backend.describe().backend).collect();
        assert_eq!(names, ["plain", "gocryptfs"]);
    }

    #[test]
    fn data_is_there_from_the_start_only_where_nothing_is_encrypted() {
        let root = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(root.path()).unwrap());
        let data = DiskPath::parse("data").unwrap();
        DirectoryBackends::new(disk.clone()).disk().metadata(&data).unwrap();
        std::fs::create_dir(root.path().join("encrypted")).unwrap();
        assert!(DirectoryBackends::new(disk).disk().metadata(&data).unwrap_err().is_data_closed());
    }
}
