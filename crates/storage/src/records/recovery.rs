//! What a node keeps for the day on which it cannot open itself.

use polis_proto::storage;
use prost::Message as _;
use zeroize::Zeroizing;

use crate::envelope::Format;
use crate::record::{InvalidRecord, Record};

/// Longest recovery blob, in bytes, wherever one is kept or sent. It holds the node's whole sealed record, of which all but the
/// parameters has a few kilobytes in a cluster of nine members; parameters name the nodes that the cluster had when they were made, with
/// some 60 bytes each, and this has room for more than a thousand. Anybody may ask a locked node for its blob, so it is not longer.
pub const RECOVERY_BLOB_LIMIT: usize = 128 * 1024;

/// What a record is more than its blob, at most.
const OVERHEAD_LIMIT: usize = 256;

/// What opens the node for whoever has the recovery key of its cluster. What is in the blob is the business of those who can seal one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryBlob {
    /// Serialized recovery blob.
    pub blob: Vec<u8>,
    /// SHA-256 over a label, the recovery key and what is sealed: whether the node would seal the same now.
    pub content_hash: [u8; 32],
}

impl Record for RecoveryBlob {
    const FORMAT: Format =
        Format { magic: *b"POLISRCV", version: 1, payload_limit: RECOVERY_BLOB_LIMIT + OVERHEAD_LIMIT };
    const LOAD_SITE: &'static str = "recovery/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let message = storage::RecoveryBlob { blob: self.blob.clone(), content_hash: self.content_hash.to_vec() };
        Zeroizing::new(message.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::RecoveryBlob { blob, content_hash } =
            storage::RecoveryBlob::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("blob", &blob)?;
        let content_hash =
            content_hash.try_into().map_err(|_| InvalidRecord::field("content_hash", "it has not 32 bytes"))?;
        Ok(Self { blob, content_hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_back_as_it_was_and_a_wrong_field_is_named() {
        let record = RecoveryBlob { blob: vec![7; RECOVERY_BLOB_LIMIT], content_hash: [3; 32] };
        let payload = record.to_payload();
        assert!(RecoveryBlob::FORMAT.encode(0, 0, &payload).is_ok());
        assert_eq!(RecoveryBlob::from_payload(&payload).as_ref(), Ok(&record));
        let empty = RecoveryBlob { blob: Vec::new(), ..record };
        let error = RecoveryBlob::from_payload(&empty.to_payload()).unwrap_err();
        assert_eq!(error.to_string(), "its field blob is wrong: it is empty");
        let short = storage::RecoveryBlob { blob: b"blob".to_vec(), content_hash: vec![3; 31] };
        let error = RecoveryBlob::from_payload(&short.encode_to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "its field content_hash is wrong: it has not 32 bytes");
    }
}
