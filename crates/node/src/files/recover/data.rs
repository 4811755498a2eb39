//! [`OpenData`]: the data partition of the node, open for as long as somebody works on it.

use std::sync::Arc;

use polis_manager::{KeepCopyError, OfflineData, OpenOfflineError};
use polis_recovery::RecoveryKey;
use polis_storage::data::{DataError, ProgressSender};
use polis_storage::{Journal, JournalStore, Layout};
use polis_supervisor::with_causes;
use tokio::runtime::Runtime;

use crate::keeping::Keeping;

/// The open data partition of a node that does not run. Closes it when it is dropped; should the process be killed before, the next who
/// opens it, a start of the node or another command, clears what is left.
pub(super) struct OpenData {
    runtime: Runtime,
    data: Arc<OfflineData>,
    is_open: bool,
}

/// What the work needs of the open data.
#[derive(Clone)]
pub(super) struct KeyKeeper {
    data: Arc<OfflineData>,
    journal: JournalStore,
}

impl OpenData {
    /// Opens it, with what the journal has or with the recovery key. Blocks.
    pub(super) fn open(
        runtime: Runtime,
        keeping: &Keeping,
        journal: &Journal,
        recovery_key: Option<&RecoveryKey>,
    ) -> Result<Self, OpenOfflineError> {
        let layout = Layout::new(Arc::clone(&keeping.disk));
        let progress = ProgressSender::default();
        let data =
            runtime.block_on(OfflineData::open(&*keeping.backends, &layout, journal, recovery_key, &progress))?;
        Ok(Self { runtime, data: Arc::new(data), is_open: true })
    }

    /// What keeps the key in this journal.
    pub(super) fn key_keeper(&self, journal: JournalStore) -> KeyKeeper {
        KeyKeeper { data: Arc::clone(&self.data), journal }
    }

    /// Closes it. Blocks.
    pub(super) fn close(mut self) -> Result<(), DataError> {
        self.is_open = false;
        self.runtime.block_on(self.data.close())
    }
}

impl Drop for OpenData {
    fn drop(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        if let Err(error) = self.runtime.block_on(self.data.close()) {
            tracing::warn!(reason = with_causes(&error), "the data partition was not closed; the next start clears it");
        }
    }
}

impl KeyKeeper {
    /// From here on the node opens its data by itself, as one that is alone. Blocks.
    pub(super) fn keep(&self) -> Result<(), KeepCopyError> {
        self.data.keep_copy(&self.journal, "recover/copy")
    }
}
