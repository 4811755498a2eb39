//! The first thing that a start changes on the disk.

use polis_storage::Layout;
use polis_supervisor::{Context, RunnableResult};

use crate::trouble::{Ended, Trouble, until_cured};

/// Makes the directories that a node has before anything else, and removes what an interrupted write or an earlier process has
/// left. A disk that is full or may not be written to is waited for, with a condition.
///
/// # Errors
///
/// When the node is being stopped.
pub async fn prepare(context: &Context, layout: &Layout) -> RunnableResult {
    let outcome = until_cured(context, || async {
        let layout = layout.clone();
        context.blocking(move || layout.prepare_start()).await.map_err(Trouble::from)
    });
    match outcome.await {
        Ok(swept) => {
            for path in swept {
                tracing::info!(path = %path.display(), "removed what an interrupted write had left");
            }
            Ok(())
        }
        Err(Ended::Cancelled) => Err(context.cancelled().await.into()),
        Err(Ended::Failed(failure)) => Err(failure.into()),
    }
}
