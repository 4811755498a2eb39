//! Changes of the consensus members, with real etcds.

#[path = "../common/mod.rs"]
mod common;

mod grow;
mod queue;
mod replacement;
mod splits;
mod town;
