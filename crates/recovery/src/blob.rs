//! What opens one node for whoever has the recovery key.
//!
//! A blob is an envelope (magic `POLISRBL`) around a `polis.recovery.v1.Blob`: a header that says whose it is, an encapsulated key,
//! and the content, sealed with a content key that follows from the encapsulated key and the recovery key. The content key is what
//! an operator sends to the node: 32 bytes, that open this one blob and nothing else.
//!
//! HPKE's base mode does not say who has sealed, so anybody can make a blob: what is in one is believed only after it has opened
//! the node's data.

#[cfg(test)]
mod tests;

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit as _};
use polis_identity::{ClusterId, NodeId, PublicKey};
use polis_proto::recovery as proto;
use polis_secret::Secret32;
use polis_storage::RECOVERY_BLOB_LIMIT;
use polis_storage::envelope::{DecodeError, Format};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use crate::cipher::{ENCAPSULATED_LENGTH, TAG_LENGTH, receiver, sender};
use crate::{Fingerprint, RecoveryKey, RecoveryPublicKey};

/// Longest blob, in bytes: what a node keeps of one, and what a cluster takes.
pub const BLOB_LIMIT: usize = RECOVERY_BLOB_LIMIT;
/// What a blob is more than its record, at most: the header, the keys, and what the encodings and the envelope add.
const OVERHEAD_LIMIT: usize = 1024;
/// Longest record that is sealed, in bytes.
pub const RECORD_LIMIT: usize = BLOB_LIMIT - OVERHEAD_LIMIT;
/// Room for the envelope itself.
const ENVELOPE_LIMIT: usize = 128;
const FORMAT: Format = Format { magic: *b"POLISRBL", version: 1, payload_limit: BLOB_LIMIT - ENVELOPE_LIMIT };
const _: () = assert!(FORMAT.file_limit() <= BLOB_LIMIT, "a blob of the format is one that is taken");

/// Binds what is sealed to what it is for.
const PURPOSE: &[u8] = b"polis recovery blob v1\0";
/// For the exporter of HPKE.
const CONTENT_KEY_LABEL: &[u8] = b"polis recovery content key v1\0";
/// For the hash that tells one content from another.
const HASH_LABEL: &[u8] = b"polis recovery blob content v1\0";
/// A content key seals one content, so it needs one nonce.
const NONCE: [u8; 12] = [0; 12];

/// Whose blob it is. Bound to what is sealed, and not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobSubject {
    /// Its cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Key with which the node shows itself as long as it can unseal its record.
    pub join_key: PublicKey,
}

/// What a blob opens. Has no `Debug`: nearly all of it is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct BlobContent {
    /// The node's whole sealed record, as the journal serializes it.
    pub record: Zeroizing<Vec<u8>>,
    /// The cluster's half of the key of the node's data.
    pub cluster_unlock_key: Secret32,
    /// The one that replaces it; absent unless a change is under way. A node tries it first.
    pub pending_cluster_unlock_key: Option<Secret32>,
}

/// The key of one blob's content: what is sent to the node that has the blob.
#[derive(Clone, PartialEq, Eq)]
pub struct ContentKey(Secret32);

/// A blob: sealed to a recovery key, and not secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob {
    /// As it is serialized, to which everything is bound.
    header: Vec<u8>,
    subject: BlobSubject,
    recipient: Fingerprint,
    encapsulated: [u8; ENCAPSULATED_LENGTH],
    sealed: Vec<u8>,
}

impl BlobSubject {
    fn header(&self, recipient: &RecoveryPublicKey) -> proto::blob::Header {
        proto::blob::Header {
            cluster_id: self.cluster.to_string(),
            node_id: self.node.to_string(),
            join_public_key: self.join_key.as_bytes().to_vec(),
            recovery_key_fingerprint: recipient.fingerprint().to_string(),
        }
    }
}

impl Blob {
    /// Seals `content` of `subject` to `recipient`. Each call gives other bytes.
    ///
    /// # Errors
    ///
    /// When the record is too long.
    pub fn seal(
        recipient: &RecoveryPublicKey,
        subject: BlobSubject,
        content: &BlobContent,
    ) -> Result<Self, SealBlobError> {
        let length = content.record.len();
        if length > RECORD_LIMIT {
            return Err(SealBlobError::TooLong { length });
        }
        let header = subject.header(recipient).encode_to_vec();
        let (encapsulated, context) = sender(recipient, PURPOSE, &header);
        let content_key = exported(|label, key| context.export(label, key));
        let sealed = content_key.cipher().encrypt(&NONCE.into(), Payload { msg: &content.to_bytes(), aad: &header });
        let sealed = sealed.expect("a record is shorter than the cipher's limit");
        Ok(Self { header, subject, recipient: recipient.fingerprint(), encapsulated, sealed })
    }

    /// Whose it is.
    #[must_use]
    pub const fn subject(&self) -> &BlobSubject {
        &self.subject
    }

    /// The recovery key that opens it.
    #[must_use]
    pub const fn recipient(&self) -> Fingerprint {
        self.recipient
    }

    /// The bytes, to be stored or sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let message = proto::Blob {
            header: self.header.clone(),
            encapsulated_key: self.encapsulated.to_vec(),
            sealed_content: self.sealed.clone(),
        };
        let bytes = FORMAT.encode(0, 0, &message.encode_to_vec());
        bytes.expect("a record within its limit makes a blob within its own").to_vec()
    }

    /// Reads the bytes.
    ///
    /// # Errors
    ///
    /// When they are not a whole blob of a version that this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BlobError> {
        let envelope = FORMAT.decode(bytes).map_err(BlobError::NotWhole)?;
        let message = proto::Blob::decode(&envelope.payload[..]).map_err(BlobError::NotAMessage)?;
        let header = proto::blob::Header::decode(&message.header[..]).map_err(BlobError::NotAMessage)?;
        let field = |field| BlobError::Field { field };
        let subject = BlobSubject {
            cluster: header.cluster_id.parse().map_err(|_| field("cluster_id"))?,
            node: header.node_id.parse().map_err(|_| field("node_id"))?,
            join_key: PublicKey::try_from(&header.join_public_key[..]).map_err(|_| field("join_public_key"))?,
        };
        let recipient = header.recovery_key_fingerprint.parse().map_err(|_| field("recovery_key_fingerprint"))?;
        let encapsulated = message.encapsulated_key.try_into().map_err(|_| field("encapsulated_key"))?;
        if message.sealed_content.len() < TAG_LENGTH {
            return Err(field("sealed_content"));
        }
        Ok(Self { header: message.header, subject, recipient, encapsulated, sealed: message.sealed_content })
    }

    /// The key of its content, by the recovery key. That it is the right one is known once it has opened the content, which this
    /// does as well.
    ///
    /// # Errors
    ///
    /// When `key` is not the one that it was sealed to, or the blob was changed.
    pub fn content_key(&self, key: &RecoveryKey) -> Result<ContentKey, OpenBlobError> {
        let found = key.fingerprint();
        if found != self.recipient {
            return Err(OpenBlobError::AnotherKey { found, expected: self.recipient });
        }
        let context = receiver(key, &self.encapsulated, PURPOSE, &self.header).ok_or(OpenBlobError::Changed)?;
        let content_key = exported(|label, key| context.export(label, key));
        self.open(&content_key).map(|_| content_key)
    }

    /// The content, by its key.
    ///
    /// # Errors
    ///
    /// When it is another key, or the blob was changed.
    pub fn open(&self, key: &ContentKey) -> Result<BlobContent, OpenBlobError> {
        let opened = key.cipher().decrypt(&NONCE.into(), Payload { msg: &self.sealed, aad: &self.header });
        let opened = opened.map(Zeroizing::new).map_err(|_| OpenBlobError::Changed)?;
        BlobContent::from_bytes(&opened).ok_or(OpenBlobError::Content)
    }

    /// SHA-256 of its bytes: whether a node still has the very blob that an answer is for.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Blob").field("subject", &self.subject).field("recipient", &self.recipient).finish()
    }
}

impl ContentKey {
    /// The key with these 32 secret bytes, as a node receives them.
    #[must_use]
    pub const fn from_secret(secret: Secret32) -> Self {
        Self(secret)
    }

    /// The 32 secret bytes, to be sent to the node that has the blob, over a connection on which it has shown that it is that
    /// node.
    #[must_use]
    pub const fn secret(&self) -> &Secret32 {
        &self.0
    }

    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(self.0.expose().into())
    }
}

/// The key that both ends of a context of HPKE can export.
fn exported<E: fmt::Debug>(export: impl FnOnce(&[u8], &mut [u8]) -> Result<(), E>) -> ContentKey {
    let mut key = Zeroizing::new([0; 32]);
    export(CONTENT_KEY_LABEL, &mut key[..]).expect("32 bytes can be exported");
    ContentKey(Secret32::new(*key))
}

/// A message whose secrets are wiped when it is dropped.
struct Wiped(proto::blob::Content);

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.record.zeroize();
        self.0.cluster_unlock_key.zeroize();
        self.0.pending_cluster_unlock_key.zeroize();
    }
}

impl BlobContent {
    /// SHA-256 over who can open it, whose it is and what it is: whether a blob that was sealed earlier is still what would be sealed
    /// now. As nearly all of the content is random, it says nothing about that.
    #[must_use]
    pub fn hash(&self, recipient: &RecoveryPublicKey, subject: &BlobSubject) -> [u8; 32] {
        let header = subject.header(recipient).encode_to_vec();
        let mut hash = Sha256::new_with_prefix(HASH_LABEL);
        hash.update(recipient.as_bytes());
        hash.update((header.len() as u64).to_be_bytes());
        hash.update(header);
        hash.update(&*self.to_bytes());
        hash.finalize().into()
    }

    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let message = Wiped(proto::blob::Content {
            record: self.record.to_vec(),
            cluster_unlock_key: self.cluster_unlock_key.expose().to_vec(),
            pending_cluster_unlock_key: self.pending_cluster_unlock_key.as_ref().map(|key| key.expose().to_vec()),
        });
        Zeroizing::new(message.0.encode_to_vec())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let message = Wiped(proto::blob::Content::decode(bytes).ok()?);
        let pending = message.0.pending_cluster_unlock_key.as_deref().map(Secret32::try_from);
        Some(Self {
            record: Zeroizing::new(message.0.record.clone()),
            cluster_unlock_key: Secret32::try_from(&message.0.cluster_unlock_key[..]).ok()?,
            pending_cluster_unlock_key: pending.transpose().ok()?,
        })
    }
}

/// Why no blob was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealBlobError {
    /// The record is longer than [`RECORD_LIMIT`].
    #[error("the node's sealed record has {length} bytes, and a recovery blob takes at most {RECORD_LIMIT}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
}

/// Why bytes are no recovery blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The envelope is damaged, of another kind, or of a newer version.
    #[error("the recovery blob is not whole")]
    NotWhole(#[source] DecodeError),
    /// What is in the envelope is no message.
    #[error("the recovery blob is no message of the expected kind")]
    NotAMessage(#[source] prost::DecodeError),
    /// One of its fields has an impossible value.
    #[error("the field {field} of the recovery blob is wrong")]
    Field {
        /// Name of the field in the schema.
        field: &'static str,
    },
}

/// Why a blob was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenBlobError {
    /// It is sealed to another recovery key.
    #[error(
        "these are the words of the recovery key {found}, and the node's blob is sealed to {expected}: it is the key of another \
         cluster, an older one, or a word is wrong in a way that the checksum cannot see (1 in 256)"
    )]
    AnotherKey {
        /// The key at hand.
        found: Fingerprint,
        /// The one that it is sealed to.
        expected: Fingerprint,
    },
    /// The key is the right one and does not open it, or a content key is another blob's.
    #[error(
        "the recovery blob does not open: the key is that of another blob, or the blob was changed after it was made"
    )]
    Changed,
    /// It opened, and what is in it cannot be used.
    #[error(
        "the content of the recovery blob cannot be used: it was not made by a node, or by a newer version of Polis"
    )]
    Content,
}
