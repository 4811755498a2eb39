//! The first things that a start changes on the disk. A disk that is full or may not be written to is waited for, with a
//! condition.

use polis_storage::{DiskError, Layout};
use polis_supervisor::{BoxError, Context};

use crate::trouble::{Ended, Trouble, until_cured};

/// Makes `ephemeral` and empties it. From then on the node can be asked how it is.
///
/// # Errors
///
/// When the node is being stopped.
pub async fn prepare_ephemeral(context: &Context, layout: &Layout) -> Result<(), BoxError> {
    on_layout(context, layout, Layout::prepare_ephemeral).await
}

/// Makes the other directories that a node has before anything else, and removes what an interrupted write has left. Nothing
/// else may write to the disk meanwhile.
///
/// # Errors
///
/// When the node is being stopped.
pub async fn prepare_lasting(context: &Context, layout: &Layout) -> Result<(), BoxError> {
    for path in on_layout(context, layout, Layout::prepare_lasting).await? {
        tracing::info!(path = %path.display(), "removed what an interrupted write had left");
    }
    Ok(())
}

async fn on_layout<T: Send + 'static>(
    context: &Context,
    layout: &Layout,
    work: fn(&Layout) -> Result<T, DiskError>,
) -> Result<T, BoxError> {
    let outcome = until_cured(context, || async {
        let layout = layout.clone();
        context.blocking(move || work(&layout)).await.map_err(Trouble::from)
    });
    match outcome.await {
        Ok(value) => Ok(value),
        Err(Ended::Cancelled) => Err(context.cancelled().await.into()),
        Err(Ended::Failed(failure)) => Err(failure.into()),
    }
}
