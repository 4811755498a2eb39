//! The file in which a snapshot of a cluster's state leaves a node.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic `POLISSNP` |
//! | 4 | length of the envelope, big-endian |
//! | n | envelope (magic `POLISSNH`) around a `polis.recovery.v1.SnapshotHeader` |
//! | 32 | encapsulated key of HPKE; only if the content is sealed |
//! | rest | the content in chunks of 64 KiB, the last one shorter or as long; each 16 bytes longer if it is sealed |
//!
//! The header can be read without a key: what the snapshot is of, how long, and which recovery key opens it. It states length and
//! digest of the content, so these are known before it is written: a node has verified its snapshot by then.
//!
//! Sealed chunks are those of one context of HPKE, whose numbers keep them in order; it is bound to the header, and each chunk to
//! whether it is the last. A content that is not sealed is protected against damage by its digest, and against nobody who wants to
//! change it.
//!
//! Reading and writing are streams that hold one chunk.

mod header;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use header::{InvalidHeader, Protection, SnapshotHeader, SnapshotMember};
pub use reader::{ReadSnapshotError, SnapshotContent, SnapshotReader};
pub use writer::{SnapshotWriter, WriteSnapshotError};

use polis_storage::envelope::Format;

/// At the start of each snapshot file.
const MAGIC: [u8; 8] = *b"POLISSNP";
/// What the header is in. Its payload has room for more members than a cluster can have.
const HEADER_FORMAT: Format = Format { magic: *b"POLISSNH", version: 1, payload_limit: 16 * 1024 };
/// Length of each chunk of the content but the last, in bytes.
const CHUNK_LENGTH: usize = 64 * 1024;
/// Binds what is sealed to what it is for.
const PURPOSE: &[u8] = b"polis snapshot v1\0";

/// What a chunk is bound to, beside its number: whether the content ends with it.
const fn associated(last: bool) -> &'static [u8] {
    if last { b"last" } else { b"more" }
}

/// Length of the next chunk when this much of the content is left, and whether it is the last.
fn next_chunk(left: u64) -> (usize, bool) {
    match usize::try_from(left) {
        Ok(left) if left <= CHUNK_LENGTH => (left, true),
        Ok(_) | Err(_) => (CHUNK_LENGTH, false),
    }
}
