//! The recovery key of a cluster, and what is sealed to it.
//!
//! Each node's data are locked by two halves: its own, which the TPM gives out, and the cluster's, which the other members give
//! out (cold-start.md). The recovery key stands in for both: for a board that died, a firmware that changed what the TPM is
//! asked to find, and for a cluster of which too little survives. An operator makes it, writes it down as words and keeps it;
//! the cluster has the public half only.
//!
//! * [`RecoveryKey`] is the private half, which people see as [`RecoveryWords`]; [`RecoveryPublicKey`] the public one, a text with
//!   a checksum of its own; [`Fingerprint`] the short name of the key.
//! * [`Blob`] is what a node keeps in case that it cannot open itself: its whole sealed record and the cluster's half of its key.
//!   A blob is not secret. Whoever has the recovery key derives from it a [`ContentKey`], which is all that the node has to be
//!   sent: it has the blob.
//! * [`node`] decides what a node offers and what it makes of an answer.
//! * [`snapshot`] is the file in which a snapshot of the cluster's state leaves a node.
//!
//! Everything here is a value or a stream: the crate opens no file and no connection and asks no clock. The encryption is
//! HPKE (RFC 9180) with X25519, HKDF-SHA256 and ChaCha20-Poly1305.

#![forbid(unsafe_code)]

mod blob;
mod cipher;
mod fingerprint;
mod key;
pub mod node;
mod public_key;
pub mod snapshot;
mod words;

pub use blob::{
    BLOB_LIMIT, Blob, BlobContent, BlobError, BlobSubject, ContentKey, OpenBlobError, RECORD_LIMIT, SealBlobError,
};
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use key::RecoveryKey;
pub use public_key::{PUBLIC_KEY_FILE_LIMIT, PUBLIC_KEY_PEM_LABEL, ParsePublicKeyError, RecoveryPublicKey};
pub use words::{ParseWordsError, RecoveryWords, WORDS_TEXT_LIMIT};
