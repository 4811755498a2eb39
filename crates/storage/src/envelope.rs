//! The envelope around everything that a node keeps in a file of its own.
//!
//! All numbers are big-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic of the format |
//! | 4 | version of the format, from 1 |
//! | 4 | kind: for the journal the kind of seal, else 0 |
//! | 8 | generation: which of several writes this is; 0 for files that have no generations |
//! | 4 | length of the payload |
//! | n | payload |
//! | 32 | SHA-256 of everything before it |
//!
//! Magic, version and the checksum at the end stay where they are in every future version, so that a file of a future
//! version can be told from a damaged one.

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

const MAGIC_LENGTH: usize = 8;
const HEADER_LENGTH: usize = MAGIC_LENGTH + 4 + 4 + 8 + 4;
const CHECKSUM_LENGTH: usize = 32;

/// A format of files: what its envelope looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Eight ASCII letters at the start of each file.
    pub magic: [u8; MAGIC_LENGTH],
    /// The version that this build reads and writes.
    pub version: u32,
    /// Longest payload in bytes.
    pub payload_limit: usize,
}

/// What was in an envelope.
#[derive(Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Kind of seal of the journal; 0 otherwise.
    pub kind: u32,
    /// Which of several writes this is.
    pub generation: u64,
    /// The content. It may be secret, so it is wiped when dropped.
    pub payload: Zeroizing<Vec<u8>>,
}

impl Format {
    /// The version that is written, which is also the highest that is read: [`Format::version`], and more in a build that a test has
    /// raised ([`polis_version::raise`]). That one reads what lies between, as a newer build does.
    fn newest(&self) -> u32 {
        self.version + polis_version::raise()
    }

    /// Longest file of this format in bytes.
    #[must_use]
    pub const fn file_limit(&self) -> usize {
        HEADER_LENGTH + self.payload_limit + CHECKSUM_LENGTH
    }

    /// The bytes of a file.
    ///
    /// # Errors
    ///
    /// When the payload is longer than the format allows.
    pub fn encode(&self, kind: u32, generation: u64, payload: &[u8]) -> Result<Zeroizing<Vec<u8>>, EncodeError> {
        let too_long = EncodeError { length: payload.len(), limit: self.payload_limit };
        let length = u32::try_from(payload.len()).map_err(|_| too_long)?;
        if payload.len() > self.payload_limit {
            return Err(too_long);
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEADER_LENGTH + payload.len() + CHECKSUM_LENGTH));
        bytes.extend_from_slice(&self.magic);
        bytes.extend_from_slice(&self.newest().to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&generation.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(payload);
        let checksum = Sha256::digest(&*bytes);
        bytes.extend_from_slice(&checksum);
        Ok(bytes)
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    ///
    /// When they are not a whole file of this format and version.
    pub fn decode(&self, bytes: &[u8]) -> Result<Envelope, DecodeError> {
        let damaged = |problem| DecodeError::Damaged { problem };
        let Some((magic, _)) = bytes.split_first_chunk::<MAGIC_LENGTH>() else {
            return Err(damaged("it is too short"));
        };
        if *magic != self.magic {
            return Err(DecodeError::NotThisFormat { expected: self.magic, found: *magic });
        }
        let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM_LENGTH>() else {
            return Err(damaged("it is too short"));
        };
        // The checksum comes before the version: a flipped bit in the version is damage, not a future.
        if Sha256::digest(content).as_slice() != checksum {
            return Err(damaged("its checksum is wrong"));
        }
        let mut rest = content.get(MAGIC_LENGTH..).unwrap_or_default();
        let version = take(&mut rest).map(u32::from_be_bytes).ok_or(damaged("it is too short"))?;
        if version > self.newest() {
            return Err(DecodeError::FutureVersion { found: version, known: self.newest() });
        }
        if version < self.version {
            return Err(damaged("its version never existed"));
        }
        let (Some(kind), Some(generation), Some(length)) = (take(&mut rest), take(&mut rest), take(&mut rest)) else {
            return Err(damaged("it is too short"));
        };
        if usize::try_from(u32::from_be_bytes(length)) != Ok(rest.len()) || rest.len() > self.payload_limit {
            return Err(damaged("its length is wrong"));
        }
        Ok(Envelope {
            kind: u32::from_be_bytes(kind),
            generation: u64::from_be_bytes(generation),
            payload: Zeroizing::new(rest.to_vec()),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

/// A payload that is longer than its format allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content is {length} bytes long, and at most {limit} are allowed")]
pub struct EncodeError {
    /// Bytes.
    pub length: usize,
    /// Bytes.
    pub limit: usize,
}

/// Why bytes are not a whole file of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The file begins with another magic.
    #[error(
        "it is not a file of this kind: it begins with \"{}\" and not with \"{}\"",
        found.escape_ascii(), expected.escape_ascii()
    )]
    NotThisFormat {
        /// The format's magic.
        expected: [u8; MAGIC_LENGTH],
        /// What the file begins with.
        found: [u8; MAGIC_LENGTH],
    },
    /// The file is whole and of a version that this build does not know.
    #[error(
        "it has version {found} of its format, and this build knows version {known}: it was written by a newer Polis"
    )]
    FutureVersion {
        /// Version of the file.
        found: u32,
        /// Version that this build reads and writes.
        known: u32,
    },
    /// The file was cut, torn or changed.
    #[error("it is damaged: {problem}")]
    Damaged {
        /// What is wrong with it.
        problem: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: Format = Format { magic: *b"POLISTST", version: 3, payload_limit: 512 };

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = FORMAT.encode(1, 0x0203, b"abc").unwrap();
        assert_eq!(&bytes[..31], b"POLISTST\0\0\0\x03\0\0\0\x01\0\0\0\0\0\0\x02\x03\0\0\0\x03abc");
        assert_eq!(bytes[31..], Sha256::digest(&bytes[..31])[..]);
    }

    #[test]
    fn other_formats_and_versions_are_told_apart() {
        let other = Format { magic: *b"POLISOTH", ..FORMAT };
        let newer = Format { version: 4, ..FORMAT };
        let error = FORMAT.decode(&other.encode(0, 0, b"").unwrap()).err().unwrap();
        assert_eq!(error, DecodeError::NotThisFormat { expected: *b"POLISTST", found: *b"POLISOTH" });
        let error = FORMAT.decode(&newer.encode(0, 0, b"").unwrap()).err().unwrap();
        assert_eq!(error, DecodeError::FutureVersion { found: 4, known: 3 });
        assert!(error.to_string().contains("version 4") && error.to_string().contains("version 3"));
        let older = Format { version: 2, ..FORMAT };
        let error = FORMAT.decode(&older.encode(0, 0, b"").unwrap()).err().unwrap();
        assert!(matches!(error, DecodeError::Damaged { .. }));
    }

    #[test]
    fn a_payload_over_the_limit_is_neither_written_nor_read() {
        assert!(FORMAT.encode(0, 0, &[0; 512]).is_ok());
        assert_eq!(FORMAT.encode(0, 0, &[0; 513]).err().unwrap(), EncodeError { length: 513, limit: 512 });
        let wide = Format { payload_limit: 1024, ..FORMAT };
        assert!(FORMAT.decode(&wide.encode(0, 0, &[0; 513]).unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(kind: u32, generation: u64, payload in prop::collection::vec(any::<u8>(), 0..512)) {
            let envelope = FORMAT.decode(&FORMAT.encode(kind, generation, &payload).unwrap()).unwrap();
            prop_assert_eq!((envelope.kind, envelope.generation), (kind, generation));
            prop_assert_eq!(&*envelope.payload, &payload);
        }

        #[test]
        fn any_cut_is_detected(payload in prop::collection::vec(any::<u8>(), 0..128), cut: prop::sample::Index) {
            let bytes = FORMAT.encode(1, 7, &payload).unwrap();
            let error = FORMAT.decode(&bytes[..cut.index(bytes.len())]).err();
            prop_assert!(matches!(error, Some(DecodeError::Damaged { .. })), "{:?}", error);
        }

        #[test]
        fn any_appended_byte_is_detected(payload in prop::collection::vec(any::<u8>(), 0..128), byte: u8) {
            let mut bytes = FORMAT.encode(1, 7, &payload).unwrap();
            bytes.push(byte);
            let error = FORMAT.decode(&bytes).err();
            prop_assert!(matches!(error, Some(DecodeError::Damaged { .. })), "{:?}", error);
        }

        #[test]
        fn any_flipped_bit_is_detected_and_is_never_a_future(
            payload in prop::collection::vec(any::<u8>(), 0..128), position: prop::sample::Index, bit in 0..8_u8
        ) {
            let mut bytes = FORMAT.encode(1, 7, &payload).unwrap();
            let position = position.index(bytes.len());
            bytes[position] ^= 1 << bit;
            match FORMAT.decode(&bytes).err() {
                Some(DecodeError::NotThisFormat { .. }) => prop_assert!(position < MAGIC_LENGTH),
                Some(DecodeError::Damaged { .. }) => prop_assert!(position >= MAGIC_LENGTH),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn noise_is_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(FORMAT.decode(&bytes).is_err());
            let with_magic = [&FORMAT.magic[..], &bytes].concat();
            prop_assert!(FORMAT.decode(&with_magic).is_err());
        }
    }
}
