//! The journal while the node runs.

use polis_storage::{Journal, JournalError};
use polis_supervisor::Context;

use crate::consensus::ConsensusProvider;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::Ended;

impl<C: ConsensusProvider> Inner<C> {
    pub(super) async fn read_journal(&self, context: &Context) -> Result<Option<Journal>, Ended> {
        let store = self.journal.clone();
        Ok(self.on_disk(context, move || store.load()).await?.map(|loaded| loaded.value))
    }

    /// Changes the newest journal, with nothing in between. With `both`, no generation holds anything of an earlier one then.
    pub(super) async fn change_journal(
        &self,
        context: &Context,
        site: &'static str,
        both: bool,
        change: impl Fn(&mut Journal) + Send + Sync + 'static,
    ) -> Result<(), Ended> {
        let store = self.journal.clone();
        let changed = self
            .on_disk(context, move || {
                let Some(loaded) = store.load()? else { return Ok(None) };
                let mut journal = loaded.value;
                change(&mut journal);
                if both {
                    store.store_both(&journal, site)?;
                } else {
                    store.store(&journal, site)?;
                }
                Ok::<_, JournalError>(Some(journal))
            })
            .await?;
        match changed {
            Some(journal) => {
                self.record(&journal);
                Ok(())
            }
            None => Err(Ended::Failed(Failure::Disk {
                what: "the enrolment journal cannot be used",
                source: "it was there when this node started, and it is gone; bring it back".into(),
            })),
        }
    }
}
