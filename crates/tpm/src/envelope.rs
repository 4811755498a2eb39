//! What a sealed journal is made of.
//!
//! All numbers are big-endian; a part of no fixed length has its length before it, in 2 bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `POLISTPM` |
//! | 4 | version of this form, 1 |
//! | 2 + n | name of the storage key under which the envelope key was sealed |
//! | 2 + n | public area of the sealed envelope key |
//! | 2 + n | its private area |
//! | 32 | PCR 7 when it was sealed |
//! | 32 | SHA-256 of everything before it |
//! | 24 | nonce |
//! | n + 16 | the journal, encrypted with XChaCha20-Poly1305 under the envelope key, and the tag |
//!
//! What is authenticated with the journal is the number of this kind of seal and all that stands before the nonce: a journal does not
//! open in another file. The checksum lets damage be known without asking the TPM, and damage be told from another TPM. Nonces of 24
//! bytes may be random, however often one key is used.

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use polis_secret::{Secret, Secret32};
use polis_storage::journal::SealKind;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::sealed_key::{DIGEST_LENGTH, PART_LIMIT, SealedKey};

const MAGIC: [u8; 8] = *b"POLISTPM";

const VERSION: u32 = 1;

const NONCE_LENGTH: usize = 24;

/// All that stands before the nonce: what stays the same from one generation to the next.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Header(Vec<u8>);

/// A sealed journal, taken apart and not yet opened.
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Envelope<'a> {
    pub(crate) header: Header,
    pub(crate) key: SealedKey,
    nonce: [u8; NONCE_LENGTH],
    ciphertext: &'a [u8],
}

/// Why bytes are no sealed journal, or none that this key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvelopeError {
    #[error("it does not begin as what a TPM has sealed")]
    Magic,
    #[error("it is too short")]
    TooShort,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it has version {found} of its form, and this build knows version {VERSION}: a newer Polis wrote it")]
    FutureVersion { found: u32 },
    #[error("its version never existed")]
    NoVersion,
    #[error("the TPM has unsealed its key, and that does not open it: it was changed")]
    Tag,
}

impl Header {
    pub(crate) fn new(key: &SealedKey) -> Self {
        let SealedKey { storage_key_name, public, private, boot_state } = key;
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        for part in [storage_key_name, public, private] {
            // The protocol with the helper allows no longer ones.
            let part = part.get(..PART_LIMIT).unwrap_or(part);
            bytes.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(boot_state);
        let checksum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        Self(bytes)
    }

    /// The sealed journal.
    pub(crate) fn close(&self, key: &Secret32, plain: &[u8]) -> Zeroizing<Vec<u8>> {
        let nonce = Secret::<NONCE_LENGTH>::random();
        let nonce = nonce.expose();
        let additional = self.authenticated();
        let payload = Payload { msg: plain, aad: &additional };
        let ciphertext = cipher(key).encrypt(&XNonce::from(*nonce), payload);
        // Only a message of 256 GiB is too long for this cipher.
        let ciphertext = ciphertext.expect("a journal is short enough to be encrypted");
        Zeroizing::new([&self.0[..], nonce, &ciphertext].concat())
    }

    fn authenticated(&self) -> Vec<u8> {
        [&SealKind::Tpm.number().to_be_bytes()[..], &self.0].concat()
    }
}

impl<'a> Envelope<'a> {
    /// Takes bytes apart. Of the key, everything is right that can be told without a TPM.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, EnvelopeError> {
        let mut rest = bytes;
        let magic: [u8; 8] = take(&mut rest)?;
        if magic != MAGIC {
            return Err(EnvelopeError::Magic);
        }
        let version = u32::from_be_bytes(take(&mut rest)?);
        if version > VERSION {
            // Another version may look different from here on. The whole file has a checksum of its own, outside of this, so
            // that a number like this is no damage.
            return Err(EnvelopeError::FutureVersion { found: version });
        }
        if version == 0 {
            return Err(EnvelopeError::NoVersion);
        }
        let key = SealedKey {
            storage_key_name: part(&mut rest)?,
            public: part(&mut rest)?,
            private: part(&mut rest)?,
            boot_state: take::<DIGEST_LENGTH>(&mut rest)?,
        };
        let checked = bytes.get(..bytes.len().saturating_sub(rest.len())).unwrap_or_default();
        let checksum: [u8; 32] = take(&mut rest)?;
        if Sha256::digest(checked).as_slice() != checksum {
            return Err(EnvelopeError::Checksum);
        }
        let header = bytes.get(..bytes.len().saturating_sub(rest.len())).unwrap_or_default();
        let nonce = take(&mut rest)?;
        Ok(Self { header: Header(header.to_vec()), key, nonce, ciphertext: rest })
    }

    /// The journal.
    pub(crate) fn open(&self, key: &Secret32) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
        let additional = self.header.authenticated();
        let payload = Payload { msg: self.ciphertext, aad: &additional };
        let plain = cipher(key).decrypt(&XNonce::from(self.nonce), payload);
        plain.map(Zeroizing::new).map_err(|_| EnvelopeError::Tag)
    }
}

/// Wipes its key when dropped.
fn cipher(key: &Secret32) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.expose().into())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], EnvelopeError> {
    let (taken, left) = rest.split_first_chunk().ok_or(EnvelopeError::TooShort)?;
    *rest = left;
    Ok(*taken)
}

fn part(rest: &mut &[u8]) -> Result<Vec<u8>, EnvelopeError> {
    let length = usize::from(u16::from_be_bytes(take(rest)?));
    let (taken, left) = rest.split_at_checked(length).ok_or(EnvelopeError::TooShort)?;
    *rest = left;
    Ok(taken.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealed_key() -> SealedKey {
        SealedKey { storage_key_name: vec![1; 34], public: vec![2; 78], private: vec![3; 190], boot_state: [4; 32] }
    }

    fn key() -> Secret32 {
        Secret32::new([5; 32])
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let header = Header::new(&sealed_key());
        let sealed = header.close(&key(), b"journal");
        assert_eq!(&sealed[..12], b"POLISTPM\0\0\0\x01");
        assert_eq!(&sealed[12..14], [0, 34]);
        assert_eq!(&sealed[48..50], [0, 78]);
        assert_eq!(&sealed[128..130], [0, 190]);
        assert_eq!(&sealed[320..352], [4; 32]);
        assert_eq!(&sealed[352..384], &Sha256::digest(&sealed[..352])[..]);
        assert_eq!(sealed.len(), 384 + 24 + 7 + 16);
    }

    #[test]
    fn two_generations_have_the_same_header_and_nothing_else_in_common() {
        let header = Header::new(&sealed_key());
        let (first, second) = (header.close(&key(), b"journal"), header.close(&key(), b"journal"));
        assert_eq!(first[..384], second[..384]);
        assert_ne!(first[384..], second[384..]);
        for sealed in [first, second] {
            let envelope = Envelope::parse(&sealed).unwrap();
            assert!(envelope.header == header && envelope.key == sealed_key());
            assert_eq!(&**envelope.open(&key()).unwrap(), b"journal");
            assert_eq!(envelope.open(&Secret32::new([6; 32])).unwrap_err(), EnvelopeError::Tag);
        }
    }

    #[test]
    fn a_journal_does_not_open_under_another_header() {
        let other = Header::new(&SealedKey { boot_state: [9; 32], ..sealed_key() });
        let sealed = Header::new(&sealed_key()).close(&key(), b"journal");
        let moved = [&other.0[..], &sealed[384..]].concat();
        assert_eq!(Envelope::parse(&moved).unwrap().open(&key()).unwrap_err(), EnvelopeError::Tag);
    }

    #[test]
    fn a_newer_version_is_no_damage() {
        let mut sealed = Header::new(&sealed_key()).close(&key(), b"journal");
        sealed[11] = 2;
        assert_eq!(Envelope::parse(&sealed).unwrap_err(), EnvelopeError::FutureVersion { found: 2 });
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_an_error(plain in prop::collection::vec(any::<u8>(), 0..64), place: prop::sample::Index, bit in 0..8_u8) {
            let mut sealed = Header::new(&sealed_key()).close(&key(), &plain);
            let place = place.index(sealed.len());
            sealed[place] ^= 1 << bit;
            let result = Envelope::parse(&sealed).and_then(|envelope| envelope.open(&key()));
            prop_assert!(result.is_err(), "byte {}", place);
        }

        #[test]
        fn any_cut_is_an_error(plain in prop::collection::vec(any::<u8>(), 0..64), cut: prop::sample::Index) {
            let sealed = Header::new(&sealed_key()).close(&key(), &plain);
            let cut = &sealed[..cut.index(sealed.len())];
            let result = Envelope::parse(cut).and_then(|envelope| envelope.open(&key()));
            prop_assert!(result.is_err());
        }

        #[test]
        fn noise_is_never_a_panic(noise in prop::collection::vec(any::<u8>(), 0..128)) {
            prop_assert!(Envelope::parse(&noise).is_err());
            prop_assert!(Envelope::parse(&[&MAGIC[..], &1_u32.to_be_bytes(), &noise].concat()).is_err());
        }
    }
}
