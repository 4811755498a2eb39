//! Copies of the cluster's state, which every consensus member makes and checks by itself.
//!
//! [`Snapshots`] is the runnable: while this node's member works it takes a copy through its own etcd every [`PERIOD`], checks it, and
//! keeps a few (`retention`). [`Snapshots::state`] says what there is. The files are etcd's own, so that any tool of etcd reads
//! them; `polis cluster recover --snapshot` makes a cluster of one.
//!
//! # What can be relied on
//!
//! - A file with the name of a snapshot was received whole, is on the disk, and has the hash that etcd gave it. Where a tool of
//!   etcd's is there ([`RestoreTool`]), it was restored once for trial as well.
//! - The newest is never removed, whatever its age.
//! - A copy costs this member one reading of its database, and the others nothing. When nothing has changed since the last one, only
//!   its name changes.

#![forbid(unsafe_code)]

mod checked;
mod keeper;
mod name;
mod retention;
mod take;
mod tool;

pub use checked::{Checker, DamagedSnapshot, check_file};
pub use keeper::{OLD_AFTER_PERIODS, OrderError, PERIOD, Settings, Snapshots, State, Timing};
pub use name::SnapshotName;
pub use retention::{KEPT, MAX_AGE};
pub use take::{Fresh, TakeError};
pub use tool::{RestoreError, RestoreTool, Restored};
