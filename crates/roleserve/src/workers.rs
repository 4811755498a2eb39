//! The workers: each a runnable that waits for what it needs and knows none of the others.

pub(crate) mod bookkeeping;
pub(crate) mod client;
mod follow;
pub(crate) mod heartbeat;
mod judge;
pub(crate) mod locate;
pub(crate) mod member;
pub(crate) mod no_contact;
pub(crate) mod nodes;
pub(crate) mod orders;
pub(crate) mod other_side;
pub(crate) mod peer_revocations;
pub(crate) mod record;
pub(crate) mod replacement;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod trust;

use std::convert::Infallible;

use polis_supervisor::RunnableResult;

/// What a loop without an end comes to.
fn never(infallible: Infallible) -> RunnableResult {
    match infallible {}
}
