//! The client: keys under a prefix, transactions, watches that resume, leases.

mod connection;
mod error;
mod key;
mod namespaced;
mod snapshot;
mod transaction;
mod watch;

pub use connection::CALL_DEADLINE;
pub(crate) use connection::{Connection, change, change_within, read};
pub use error::KvError;
pub use key::KeyValue;
pub use namespaced::{Committed, Listing, NameError, Namespaced};
pub use snapshot::SnapshotStream;
pub use transaction::Transaction;
pub use watch::{Change, Compacted, Watch};
