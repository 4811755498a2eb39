//! A glance at a node that may not run: what it says of itself at this moment.

use std::path::Path;
use std::time::Duration;

use polis_control::{Client, Status};

/// Longest time that a node may take to say how it is; longer, and it counts as not running.
const ANSWER: Duration = Duration::from_millis(500);

/// What the node with this root says of itself now; nothing when it does not run, or is slow.
///
/// # Panics
///
/// When this process can have no runtime.
#[must_use]
pub fn status(root: &Path) -> Option<Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ask = async { Client::connect(root, false).await.ok()?.next().await.ok() };
    runtime.block_on(async { tokio::time::timeout(ANSWER, ask).await.ok().flatten() })
}
