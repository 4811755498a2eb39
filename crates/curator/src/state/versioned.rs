//! Values with the revision at which they were written.

use polis_consensus::KeyValue;
use prost::Message;

use super::StateError;

/// A value, and the revision of the store at which it was last written: what a transaction that changes it is conditioned on
/// (`Transaction::if_modified_at`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// Revision at which it was last written.
    pub revision: i64,
}

impl<T> Versioned<T> {
    /// The same with another form of the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Versioned<U> {
        Versioned { value: change(self.value), revision: self.revision }
    }
}

impl<T: AsRef<[u8]>> Versioned<T> {
    /// Reads the message that the value is; `key` is only for the error.
    pub(crate) fn decode<M: Message + Default>(&self, key: &str) -> Result<Versioned<M>, StateError> {
        let value = M::decode(self.value.as_ref()).map_err(|source| StateError::damaged(key, source))?;
        Ok(Versioned { value, revision: self.revision })
    }
}

/// A pair as it came from etcd. Keys of the curator are text; one that is not is shown as well as it can be.
pub(crate) fn of_pair(pair: KeyValue) -> (String, Versioned<Vec<u8>>) {
    let key = String::from_utf8(pair.key).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into());
    (key, Versioned { value: pair.value, revision: pair.mod_revision })
}
