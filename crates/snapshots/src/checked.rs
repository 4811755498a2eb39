//! [`Checker`]: whether a snapshot is whole, by the hash that etcd puts at its end. Pure, but for [`check_file`].

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// Bytes of the hash at the end.
const HASH_LENGTH: usize = 32;

/// What etcd's database is a multiple of: a disk's sector at least. A stream that ends elsewhere has no hash at its end.
const UNIT: u64 = 512;

/// How much of a file is read at a time.
const PIECE: usize = 256 << 10;

/// A snapshot that is not what etcd gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamagedSnapshot {
    /// It is too short, or ends where no snapshot ends.
    #[error(
        "the snapshot is cut off: it has {0} bytes, and etcd's have a multiple of {UNIT} and a hash of {HASH_LENGTH} bytes"
    )]
    CutOff(u64),
    /// The hash is that of something else.
    #[error("the snapshot is damaged: it has another SHA-256 than the one at its end")]
    OtherHash,
}

/// Takes the bytes of a snapshot in pieces of any size and says at the end whether it is whole.
#[derive(Clone, Default)]
pub struct Checker {
    hash: Sha256,
    /// The last bytes, which may be the hash.
    last: Vec<u8>,
    length: u64,
}

impl Checker {
    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.last.extend_from_slice(bytes);
        let known = self.last.len().saturating_sub(HASH_LENGTH);
        self.hash.update(&self.last[..known]);
        self.last.drain(..known);
    }

    /// The end: returns the bytes of the database.
    ///
    /// # Errors
    ///
    /// When it is not whole.
    pub fn finish(self) -> Result<u64, DamagedSnapshot> {
        let database = self.length.saturating_sub(HASH_LENGTH as u64);
        if database == 0 || !database.is_multiple_of(UNIT) {
            return Err(DamagedSnapshot::CutOff(self.length));
        }
        if self.hash.finalize()[..] == self.last { Ok(database) } else { Err(DamagedSnapshot::OtherHash) }
    }
}

/// Checks a file. Blocks.
///
/// # Errors
///
/// When it cannot be read.
pub fn check_file(path: &Path) -> io::Result<Result<u64, DamagedSnapshot>> {
    let mut file = File::open(path)?;
    let mut checker = Checker::default();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(checker.finish()),
            length => checker.update(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Vec<u8> {
        let database = vec![7; 4096];
        [&database[..], &Sha256::digest(&database)].concat()
    }

    fn check(bytes: &[u8], piece: usize) -> Result<u64, DamagedSnapshot> {
        let mut checker = Checker::default();
        bytes.chunks(piece).for_each(|piece| checker.update(piece));
        checker.finish()
    }

    #[test]
    fn a_snapshot_is_whole_or_it_is_not_in_pieces_of_any_size() {
        let whole = snapshot();
        let with = |change: fn(&mut Vec<u8>)| {
            let mut bytes = snapshot();
            change(&mut bytes);
            bytes
        };
        for piece in [1, 31, 32, 33, 4096, 10_000] {
            assert_eq!(check(&whole, piece), Ok(4096));
            for (bytes, expected) in [
                (vec![], DamagedSnapshot::CutOff(0)),
                (whole[..32].to_vec(), DamagedSnapshot::CutOff(32)),
                (whole[..4096].to_vec(), DamagedSnapshot::CutOff(4096)),
                (whole[..4127].to_vec(), DamagedSnapshot::CutOff(4127)),
                // Cut where a snapshot could end.
                (whole[..1024 + 32].to_vec(), DamagedSnapshot::OtherHash),
                (with(|bytes| bytes[0] ^= 1), DamagedSnapshot::OtherHash),
                (with(|bytes| bytes[4100] ^= 1), DamagedSnapshot::OtherHash),
            ] {
                assert_eq!(check(&bytes, piece), Err(expected), "{} {piece}", bytes.len());
            }
        }
    }

    #[test]
    fn a_file_is_checked_like_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        std::fs::write(&path, snapshot()).unwrap();
        assert_eq!(check_file(&path).unwrap(), Ok(4096));
        std::fs::write(&path, &snapshot()[1..]).unwrap();
        assert_eq!(check_file(&path).unwrap(), Err(DamagedSnapshot::CutOff(4127)));
        assert!(check_file(&directory.path().join("nothing")).is_err());
    }
}
