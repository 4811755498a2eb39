//! Processes whose parents have ended become children of the first process, which has to reap them.

use std::time::Duration;

use polis_supervisor::{Context, RunnableResult};
use polis_sys::{Orphan, reap_orphan};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How long is waited when a child that belongs to somebody here stands before the orphans: its owner reaps it within
/// milliseconds, and nothing tells of that.
const OWNER_TIME: Duration = Duration::from_millis(20);

/// Reaps orphans for as long as the machine runs: a runnable.
pub(crate) async fn reap(context: Context) -> RunnableResult {
    // Listened to before the first look, so that none falls between.
    let mut ended = signal(SignalKind::child())?;
    context.healthy();
    loop {
        while reap_all()? == Left::BehindOwnChild {
            context.unless_cancelled(sleep(OWNER_TIME)).await?;
        }
        // Many ends may come as one signal; all of them are looked for each time.
        context.unless_cancelled(ended.recv()).await?;
    }
}

#[derive(PartialEq, Eq)]
enum Left {
    Nothing,
    BehindOwnChild,
}

fn reap_all() -> std::io::Result<Left> {
    loop {
        match reap_orphan()? {
            Orphan::Reaped { id, status } => tracing::debug!("reaped the orphan {id}: {status}"),
            Orphan::BehindOwnChild => return Ok(Left::BehindOwnChild),
            Orphan::None => return Ok(Left::Nothing),
        }
    }
}
