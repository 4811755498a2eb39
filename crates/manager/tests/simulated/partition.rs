//! An encrypted data partition on the simulated disk: two slots that know keys by their hash, and a tree that nobody reaches while
//! it is closed. It hides nothing; what it shows is which keys would have opened it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use polis_storage::data::{DataError, Description, Found, ProgressSender, UnlockKeys};
use polis_storage::journal::{FormatPermit, StorageSecurity};
use polis_storage::simulation::SimulatedDisk;
use polis_storage::{
    DataBackends, DataGate, DataPartition, DataUnavailable, Disk, DiskPath, FILE_MODE, PlainData, durable,
    read_if_present,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

/// Name of the backend.
const BACKEND: &str = "simulated";

/// The backends of the simulated host.
pub(crate) struct Backends {
    disk: Arc<SimulatedDisk>,
    gate: DataGate,
    encrypted: Arc<Encrypted>,
    /// Whether the host can encrypt.
    can_encrypt: bool,
}

impl Backends {
    pub(crate) fn new(disk: &Arc<SimulatedDisk>, gate: &DataGate, can_encrypt: bool) -> Self {
        let encrypted = Encrypted { disk: disk.clone(), gate: gate.clone(), losses: watch::Sender::new(0) };
        Self { disk: disk.clone(), gate: gate.clone(), encrypted: Arc::new(encrypted), can_encrypt }
    }

    /// The encrypted partition.
    pub(crate) fn encrypted(&self) -> Arc<Encrypted> {
        self.encrypted.clone()
    }
}

impl DataBackends for Backends {
    fn choose(&self, security: StorageSecurity) -> Result<Arc<dyn DataPartition>, DataUnavailable> {
        match security {
            StorageSecurity::Insecure => {
                self.gate.set_open();
                Ok(Arc::new(PlainData::new(self.disk.clone())))
            }
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted if self.can_encrypt => {
                Ok(self.encrypted.clone())
            }
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => Err(DataUnavailable {
                security,
                reason: "the simulated host has no tool for it".into(),
                remedy: "install the simulated tool".into(),
            }),
        }
    }

    fn all(&self) -> Vec<Arc<dyn DataPartition>> {
        vec![Arc::new(PlainData::new(self.disk.clone())), self.encrypted.clone()]
    }
}

/// The partition.
pub(crate) struct Encrypted {
    disk: Arc<SimulatedDisk>,
    gate: DataGate,
    /// How often it was lost.
    losses: watch::Sender<u32>,
}

impl Encrypted {
    /// The process behind it dies.
    pub(crate) fn lose(&self) {
        self.gate.set_closed();
        self.losses.send_modify(|losses| *losses += 1);
    }

    /// How many slots there are.
    pub(crate) fn slots(disk: &SimulatedDisk) -> usize {
        (0..2).filter(|slot| disk.metadata(&path(*slot)).unwrap().is_some()).count()
    }

    /// Whether these keys open it.
    pub(crate) fn opens(disk: &SimulatedDisk, keys: &UnlockKeys) -> bool {
        holder(disk, keys).unwrap().is_some()
    }

    fn holder(&self, keys: &UnlockKeys) -> Result<Option<usize>, DataError> {
        holder(&self.disk, keys)
    }

    fn wrong_keys(&self) -> DataError {
        DataError::WrongKeys { path: PathBuf::from("vault"), backend: BACKEND }
    }

    fn write(&self, slot: usize, keys: &UnlockKeys) -> Result<(), DataError> {
        Ok(durable::write(&*self.disk, "vault/slot", &path(slot), FILE_MODE, &lock(keys))?)
    }

    fn tree(&self) -> PlainData {
        PlainData::new(self.disk.clone())
    }
}

/// The slot that knows these keys.
fn holder(disk: &SimulatedDisk, keys: &UnlockKeys) -> Result<Option<usize>, DataError> {
    for slot in 0..2 {
        if read_if_present(disk, &path(slot), 64)?.is_some_and(|found| found == lock(keys)) {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

fn path(slot: usize) -> DiskPath {
    DiskPath::parse(&format!("vault/slot.{slot}")).unwrap()
}

fn lock(keys: &UnlockKeys) -> Vec<u8> {
    Sha256::new().chain_update(keys.node.expose()).chain_update(keys.cluster.expose()).finalize().to_vec()
}

#[async_trait]
impl DataPartition for Encrypted {
    fn describe(&self) -> Description {
        Description { backend: BACKEND, storage_security: StorageSecurity::AuthenticatedEncrypted, warning: None }
    }

    async fn prepare(&self, _: &ProgressSender) -> Result<Found, DataError> {
        Ok(if Self::slots(&self.disk) > 0 { Found::Formatted { owner: None } } else { Found::Nothing })
    }

    async fn format(
        &self,
        permit: FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError> {
        let keys = keys.expect("an encrypted partition is formatted with keys");
        durable::create_directories(&*self.disk, "vault/directory", &DiskPath::parse("vault").unwrap(), 0o700)?;
        if Self::slots(&self.disk) == 0 {
            self.write(0, keys)?;
        }
        assert!(self.holder(keys)?.is_some(), "an earlier format had other keys");
        self.tree().format(permit, owner, None, progress).await
    }

    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError> {
        let keys = keys.expect("an encrypted partition is opened with keys");
        durable::settle(&*self.disk, "vault/load", &DiskPath::parse("vault").unwrap())?;
        if self.holder(keys)?.is_none() {
            return Err(self.wrong_keys());
        }
        self.tree().open(owner, None, progress).await?;
        self.gate.set_open();
        Ok(())
    }

    async fn test_open(&self, keys: &UnlockKeys) -> Result<bool, DataError> {
        Ok(self.holder(keys)?.is_some())
    }

    async fn add_key(&self, existing: &UnlockKeys, new: &UnlockKeys) -> Result<(), DataError> {
        let holder = self.holder(existing)?.ok_or_else(|| self.wrong_keys())?;
        self.write(1 - holder, new)
    }

    async fn count_keys(&self) -> Result<usize, DataError> {
        Ok(Self::slots(&self.disk))
    }

    async fn remove_others(&self, remaining: &UnlockKeys) -> Result<(), DataError> {
        let kept = self.holder(remaining)?.ok_or_else(|| self.wrong_keys())?;
        Ok(durable::remove(&*self.disk, "vault/remove", &path(1 - kept))?)
    }

    async fn lost(&self) -> String {
        let mut losses = self.losses.subscribe();
        let _ = losses.changed().await;
        "the test has killed it".into()
    }

    async fn close(&self) -> Result<(), DataError> {
        self.gate.set_closed();
        Ok(())
    }
}
