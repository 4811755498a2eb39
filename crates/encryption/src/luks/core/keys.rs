//! Key slots.

use polis_fault::point;
use polis_storage::data::{DataError, KeyOperation, UnlockKeys};
use polis_storage::journal::StorageSecurity;
use zeroize::Zeroizing;

use super::{Core, backend};
use crate::luks::commands::{self, KEY_BYTES};
use crate::luks::tools::is_wrong_key;

impl Core {
    pub(in crate::luks) fn test_open(&self, keys: &UnlockKeys) -> Result<bool, DataError> {
        let key = self.slot_key(KeyOperation::TestOpen, keys)?;
        let _state = self.lock();
        self.check_ours()?;
        Ok(self.slot_of(&key)?.is_some())
    }

    pub(in crate::luks) fn add_key(&self, existing: &UnlockKeys, new: &UnlockKeys) -> Result<(), DataError> {
        let operation = KeyOperation::AddKey;
        let (existing, new) = (self.slot_key(operation, existing)?, self.slot_key(operation, new)?);
        let _state = self.lock();
        self.check_ours()?;
        if self.slot_of(&new)?.is_some() {
            return Ok(());
        }
        let mut both = Zeroizing::new([0; 2 * KEY_BYTES]);
        both[..KEY_BYTES].copy_from_slice(&existing);
        both[KEY_BYTES..].copy_from_slice(&new);
        point("data/luks/key/add", "begin");
        match self.tool(&commands::add_key(&self.device), &*both)? {
            Ok(_) => {}
            Err(error) if is_wrong_key(&error) => return Err(self.wrong_keys()),
            Err(error) => return Err(self.tool_failed("adding a key", error)),
        }
        point("data/luks/key/add", "done");
        if self.slot_of(&new)?.is_some() {
            return Ok(());
        }
        let problem = "a key was added, and it opens nothing".to_owned();
        Err(DataError::Damaged { path: self.device.clone(), backend: backend(self.security), problem })
    }

    pub(in crate::luks) fn count_keys(&self) -> Result<usize, DataError> {
        if self.security == StorageSecurity::Insecure {
            return Err(self.not_supported(KeyOperation::CountKeys));
        }
        let _state = self.lock();
        self.check_ours()?;
        Ok(self.metadata(&self.open_device()?)?.slots.len())
    }

    pub(in crate::luks) fn remove_others(&self, remaining: &UnlockKeys) -> Result<(), DataError> {
        let remaining = self.slot_key(KeyOperation::RemoveOthers, remaining)?;
        let _state = self.lock();
        self.check_ours()?;
        let kept = self.slot_of(&remaining)?.ok_or_else(|| self.wrong_keys())?;
        for slot in self.metadata(&self.open_device()?)?.slots {
            if slot != kept {
                point("data/luks/key/remove", "begin");
                self.run("removing a key", &commands::remove_slot(&self.device, slot), &remaining)?;
                point("data/luks/key/remove", "done");
            }
        }
        Ok(())
    }
}
