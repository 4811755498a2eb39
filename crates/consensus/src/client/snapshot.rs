//! A copy of the whole state, as this member has it.

use etcd_client::SnapshotStreaming;

use super::connection::{Connection, read};
use super::error::KvError;

/// A copy that is being received: etcd's database file, followed by the SHA-256 of it. It is as this member had it when it was
/// asked for, also while others go on writing.
pub struct SnapshotStream {
    /// Revision of the store: everything up to it is in the copy, and perhaps a little more.
    pub revision: i64,
    /// Bytes of the database, about.
    pub size: u64,
    stream: SnapshotStreaming,
}

impl SnapshotStream {
    pub(crate) async fn open(connection: &Connection) -> Result<Self, KvError> {
        let mut maintenance = connection.local().maintenance_client();
        let status = read(maintenance.status()).await?.0;
        let revision = status.header.map_or(0, |header| header.revision);
        let size = status.db_size.try_into().unwrap_or_default();
        let stream = read(maintenance.snapshot()).await?;
        Ok(Self { revision, size, stream })
    }

    /// The next bytes; `None` after the last. Whether all have come is told by their hash alone.
    ///
    /// # Errors
    ///
    /// When etcd ends, or does not go on.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, KvError> {
        let received = read(self.stream.message()).await?;
        Ok(received.map(|received| received.blob().to_vec()))
    }
}
