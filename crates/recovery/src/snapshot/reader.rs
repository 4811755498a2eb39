//! Reading a snapshot file.

use std::fmt;
use std::io::{self, Read};

use polis_storage::envelope::DecodeError;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{HEADER_FORMAT, InvalidHeader, MAGIC, PURPOSE, Protection, SnapshotHeader, associated, next_chunk};
use crate::cipher::{ENCAPSULATED_LENGTH, Receiver, TAG_LENGTH, receiver};
use crate::{Fingerprint, RecoveryKey};

/// A snapshot file of which the header was read.
pub struct SnapshotReader<R> {
    inner: R,
    header: SnapshotHeader,
    protection: Protection,
    envelope: Vec<u8>,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header from the start of a file.
    ///
    /// # Errors
    ///
    /// When it is no snapshot file, was cut or damaged, or is of a newer version.
    pub fn new(mut inner: R) -> Result<Self, ReadSnapshotError> {
        let mut magic = [0; MAGIC.len()];
        match read_exact(&mut inner, &mut magic) {
            Err(ReadSnapshotError::Cut) => return Err(ReadSnapshotError::NotASnapshot),
            other => other?,
        }
        if magic != MAGIC {
            return Err(ReadSnapshotError::NotASnapshot);
        }
        let mut length = [0; 4];
        read_exact(&mut inner, &mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > HEADER_FORMAT.file_limit() {
            let problem = "its length is wrong";
            return Err(ReadSnapshotError::Header(DecodeError::Damaged { problem }));
        }
        let mut envelope = vec![0; length];
        read_exact(&mut inner, &mut envelope)?;
        let payload = HEADER_FORMAT.decode(&envelope).map_err(ReadSnapshotError::Header)?.payload;
        let (header, protection) = SnapshotHeader::from_payload(&payload).map_err(ReadSnapshotError::InvalidHeader)?;
        Ok(Self { inner, header, protection, envelope })
    }

    /// What the snapshot is of. Not believed before the content was read to its end; of a content that is not sealed, anybody can
    /// have written it.
    #[must_use]
    pub const fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// How the content is protected.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// How long the whole file is if nothing is missing, in bytes: what can be checked without the key.
    #[must_use]
    pub fn file_length(&self) -> u64 {
        let whole = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        let head = whole(MAGIC.len() + 4 + self.envelope.len());
        let content = self.header.content_length;
        let sealing = match self.protection {
            Protection::Plaintext => 0,
            Protection::Sealed(_) => {
                let chunks = content.div_ceil(whole(super::CHUNK_LENGTH)).max(1);
                whole(ENCAPSULATED_LENGTH).saturating_add(chunks.saturating_mul(whole(TAG_LENGTH)))
            }
        };
        head.saturating_add(sealing).saturating_add(content)
    }

    /// Begins to read the content. A content that is not sealed needs no key, and does not look at one.
    ///
    /// # Errors
    ///
    /// When the content is sealed and `key` is not the one that opens it.
    pub fn open(mut self, key: Option<&RecoveryKey>) -> Result<SnapshotContent<R>, ReadSnapshotError> {
        let cipher = match self.protection {
            Protection::Plaintext => None,
            Protection::Sealed(expected) => {
                let key = key.ok_or(ReadSnapshotError::NeedsKey { expected })?;
                let found = key.fingerprint();
                if found != expected {
                    return Err(ReadSnapshotError::AnotherKey { found, expected });
                }
                let mut encapsulated = [0; ENCAPSULATED_LENGTH];
                read_exact(&mut self.inner, &mut encapsulated)?;
                let context = receiver(key, &encapsulated, PURPOSE, &self.envelope);
                Some(context.ok_or(ReadSnapshotError::Changed)?)
            }
        };
        Ok(SnapshotContent {
            inner: self.inner,
            cipher,
            left: self.header.content_length,
            expected: self.header.content_sha256,
            digest: Sha256::new(),
            chunk: Zeroizing::new(Vec::new()),
            given: 0,
            progress: Progress::Under,
        })
    }
}

/// The content of a snapshot file. Its end is reached, and its last chunk given out, only when the whole is what the header says: who
/// reads it to the end without an error has all of it. The errors of [`Read`] carry a [`ReadSnapshotError`].
pub struct SnapshotContent<R> {
    inner: R,
    cipher: Option<Receiver>,
    /// How much of the content has not been read, in bytes.
    left: u64,
    expected: [u8; 32],
    digest: Sha256,
    chunk: Zeroizing<Vec<u8>>,
    /// How much of the chunk was given out, in bytes.
    given: usize,
    progress: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    /// There is more to read.
    Under,
    /// The last chunk was read, and all is well.
    Ended,
    /// Something was wrong, and stays wrong.
    Failed,
}

impl<R: Read> SnapshotContent<R> {
    fn next(&mut self) -> Result<(), ReadSnapshotError> {
        let (length, last) = next_chunk(self.left);
        let tag = self.cipher.as_ref().map_or(0, |_| TAG_LENGTH);
        let mut bytes = Zeroizing::new(vec![0; length + tag]);
        read_exact(&mut self.inner, &mut bytes)?;
        self.chunk = match &mut self.cipher {
            Some(cipher) => {
                let opened = cipher.open(&bytes, associated(last));
                Zeroizing::new(opened.map_err(|_| ReadSnapshotError::Changed)?)
            }
            None => bytes,
        };
        self.given = 0;
        self.digest.update(&*self.chunk);
        self.left -= u64::try_from(length).expect("a chunk is short");
        if last {
            self.check_end()?;
        }
        Ok(())
    }

    /// Nothing of what was read last is given out, now or later.
    fn fail(&mut self) {
        self.progress = Progress::Failed;
        self.chunk.clear();
        self.given = 0;
    }

    fn check_end(&mut self) -> Result<(), ReadSnapshotError> {
        if self.digest.clone().finalize()[..] != self.expected {
            return Err(ReadSnapshotError::Changed);
        }
        match read_exact(&mut self.inner, &mut [0; 1]) {
            Ok(()) => Err(ReadSnapshotError::Longer),
            Err(ReadSnapshotError::Cut) => {
                self.progress = Progress::Ended;
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
}

impl<R: Read> Read for SnapshotContent<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() {
            match self.progress {
                Progress::Under => {
                    if let Err(error) = self.next() {
                        self.fail();
                        return Err(error.into());
                    }
                }
                Progress::Ended => {}
                Progress::Failed => return Err(ReadSnapshotError::Changed.into()),
            }
        }
        let rest = &self.chunk[self.given..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        self.given += length;
        Ok(length)
    }
}

/// Fills `into`.
fn read_exact(inner: &mut impl Read, into: &mut [u8]) -> Result<(), ReadSnapshotError> {
    inner.read_exact(into).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            ReadSnapshotError::Cut
        } else {
            ReadSnapshotError::Read(error)
        }
    })
}

impl<R> fmt::Debug for SnapshotReader<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SnapshotReader").field("header", &self.header).finish_non_exhaustive()
    }
}

impl From<ReadSnapshotError> for io::Error {
    fn from(error: ReadSnapshotError) -> Self {
        if let ReadSnapshotError::Read(source) = error { source } else { Self::new(io::ErrorKind::InvalidData, error) }
    }
}

/// Why a snapshot file cannot be used. Nothing was changed by reading it.
#[derive(Debug, thiserror::Error)]
pub enum ReadSnapshotError {
    /// It is another file.
    #[error("it is no snapshot file of Polis")]
    NotASnapshot,
    /// The header was damaged, or is of a newer version.
    #[error("the header of the snapshot cannot be used")]
    Header(#[source] DecodeError),
    /// The header is whole and says what cannot be.
    #[error("the header of the snapshot cannot be used")]
    InvalidHeader(#[source] InvalidHeader),
    /// The file ends before its content does.
    #[error("the snapshot was cut short: the file ends before the snapshot does")]
    Cut,
    /// There is something behind the content.
    #[error("the snapshot was changed: the file goes on after the snapshot has ended")]
    Longer,
    /// The content is not what was written.
    #[error("the snapshot was changed or damaged after it was written")]
    Changed,
    /// It is sealed, and there is no key.
    #[error("the snapshot is encrypted to the recovery key {expected}")]
    NeedsKey {
        /// The key that opens it.
        expected: Fingerprint,
    },
    /// It is sealed to another key.
    #[error(
        "these are the words of the recovery key {found}, and the snapshot is encrypted to {expected}: it is the key of another \
         cluster, an older one, or a word is wrong in a way that the checksum cannot see (1 in 256)"
    )]
    AnotherKey {
        /// The key at hand.
        found: Fingerprint,
        /// The one that opens it.
        expected: Fingerprint,
    },
    /// The file cannot be read.
    #[error("the snapshot could not be read")]
    Read(#[source] io::Error),
}
