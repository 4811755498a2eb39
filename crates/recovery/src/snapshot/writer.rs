//! Writing a snapshot file.

use std::io::{self, Write};

use polis_storage::envelope::EncodeError;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{CHUNK_LENGTH, HEADER_FORMAT, MAGIC, PURPOSE, Protection, SnapshotHeader, associated, next_chunk};
use crate::RecoveryPublicKey;
use crate::cipher::{Sender, sender};

/// Writes a snapshot file: the content goes in through [`Write`], and [`Self::finish`] ends it. What was written before an error,
/// or without `finish`, is no snapshot file.
pub struct SnapshotWriter<W> {
    inner: W,
    cipher: Option<Sender>,
    header: SnapshotHeader,
    digest: Sha256,
    /// How much of the content is not yet in a chunk that was written, in bytes.
    left: u64,
    /// The chunk that is being filled. It is full only until more comes, as it may be the last.
    chunk: Zeroizing<Vec<u8>>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a file with its header. With a `recipient` the content is sealed to it; without, everybody can read it.
    ///
    /// # Errors
    ///
    /// When the header is too long, or `inner` does not take it.
    pub fn new(
        mut inner: W,
        header: SnapshotHeader,
        recipient: Option<&RecoveryPublicKey>,
    ) -> Result<Self, WriteSnapshotError> {
        let protection = recipient.map_or(Protection::Plaintext, |key| Protection::Sealed(key.fingerprint()));
        let envelope = HEADER_FORMAT.encode(0, 0, &header.to_payload(protection));
        let envelope = envelope.map_err(WriteSnapshotError::Header)?;
        let length = u32::try_from(envelope.len()).expect("the envelope has a limit far below 4 GiB");
        let sealed = recipient.map(|recipient| sender(recipient, PURPOSE, &envelope));
        let (encapsulated, cipher) = sealed.unzip();
        let encapsulated = encapsulated.as_ref().map_or(&[][..], |key| &key[..]);
        for part in [&MAGIC[..], &length.to_be_bytes(), &envelope, encapsulated] {
            inner.write_all(part).map_err(WriteSnapshotError::Write)?;
        }
        let chunk = Zeroizing::new(Vec::with_capacity(CHUNK_LENGTH));
        Ok(Self { inner, cipher, left: header.content_length, header, digest: Sha256::new(), chunk })
    }

    /// Writes the last chunk and gives back what was written to, which is neither flushed nor synced.
    ///
    /// # Errors
    ///
    /// When the content is not the one that the header states, or the last chunk cannot be written.
    pub fn finish(mut self) -> Result<W, WriteSnapshotError> {
        let missing = self.left - length(&self.chunk);
        if missing > 0 {
            return Err(WriteSnapshotError::Short { missing });
        }
        if self.digest.clone().finalize()[..] != self.header.content_sha256 {
            return Err(WriteSnapshotError::OtherContent);
        }
        self.write_chunk().map_err(WriteSnapshotError::Write)?;
        Ok(self.inner)
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        let (_, last) = next_chunk(self.left);
        match &mut self.cipher {
            Some(cipher) => {
                let sealed = cipher.seal(&self.chunk, associated(last)).map_err(io::Error::other)?;
                self.inner.write_all(&sealed)?;
            }
            None => self.inner.write_all(&self.chunk)?,
        }
        self.left -= length(&self.chunk);
        self.chunk.clear();
        Ok(())
    }
}

impl<W: Write> Write for SnapshotWriter<W> {
    /// Takes a part of the content, at most what the header has announced.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.left == length(&self.chunk) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot is longer than its header says"));
        }
        if self.chunk.len() == CHUNK_LENGTH {
            self.write_chunk()?;
        }
        let (whole, _) = next_chunk(self.left);
        let taken = &bytes[..bytes.len().min(whole - self.chunk.len())];
        self.digest.update(taken);
        self.chunk.extend_from_slice(taken);
        Ok(taken.len())
    }

    /// Flushes what is in whole chunks; the last one is written by [`SnapshotWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn length(chunk: &[u8]) -> u64 {
    u64::try_from(chunk.len()).expect("a chunk is short")
}

/// Why a snapshot file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteSnapshotError {
    /// The header does not fit.
    #[error("the header of the snapshot is too long")]
    Header(#[source] EncodeError),
    /// What is written to does not take it.
    #[error("the snapshot could not be written")]
    Write(#[source] io::Error),
    /// There was less content than the header says.
    #[error("the snapshot is {missing} bytes shorter than its header says")]
    Short {
        /// How much is missing, in bytes.
        missing: u64,
    },
    /// The content is as long as the header says, and another.
    #[error("the snapshot does not have the SHA-256 that its header says: it was changed while it was read")]
    OtherContent,
}
