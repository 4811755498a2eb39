//! The workers: each a runnable that waits for what it needs and knows none of the others.

pub(crate) mod bookkeeping;
pub(crate) mod client;
mod follow;
mod heartbeat;
pub(crate) mod locate;
pub(crate) mod member;
pub(crate) mod no_contact;
pub(crate) mod nodes;
pub(crate) mod orders;
pub(crate) mod peer_revocations;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod trust;

pub(crate) use heartbeat::run as heartbeat;
