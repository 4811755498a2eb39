//! The public half of a recovery key, and the text that carries it.

use std::fmt;

use curve25519_dalek::MontgomeryPoint;
use curve25519_dalek::traits::IsIdentity as _;
use pem_rfc7468::LineEnding;
use polis_storage::envelope::{DecodeError, Format};

use crate::Fingerprint;

/// Label of the PEM file that holds a public half.
pub const PUBLIC_KEY_PEM_LABEL: &str = "POLIS RECOVERY PUBLIC KEY";

/// Longest text of a public half that is looked at, in bytes; a good one is far shorter.
pub const PUBLIC_KEY_FILE_LIMIT: usize = 4096;

/// What the PEM holds: an envelope, so that a changed letter or a newer format is told from another key.
const FORMAT: Format = Format { magic: *b"POLISRPK", version: 1, payload_limit: 32 };

/// The public half of a recovery key: an X25519 key to which things can be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecoveryPublicKey([u8; 32]);

impl RecoveryPublicKey {
    /// The key with these bytes, or nothing when no private key belongs to them: what is sealed to one of the few points of
    /// small order could be read by everybody.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Option<Self> {
        // A clamped scalar is a multiple of eight, which takes exactly the points of small order to the identity.
        (!MontgomeryPoint(bytes).mul_clamped([0; 32]).is_identity()).then_some(Self(bytes))
    }

    /// Takes over what was derived from a private key.
    pub(crate) const fn derived(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name of the key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_recovery_key(&self.0)
    }

    /// The text of its file: a line for people, then PEM.
    #[must_use]
    pub fn to_text(&self) -> String {
        let content = FORMAT.encode(0, 0, &self.0).expect("a key is as long as the format allows");
        let pem = pem_rfc7468::encode_string(PUBLIC_KEY_PEM_LABEL, LineEnding::LF, &content);
        let pem = pem.expect("a key fits in memory as PEM");
        format!("Public half of the recovery key {}\n{pem}", self.fingerprint())
    }

    /// Reads the text of a file. Every letter counts; only white space at the ends of lines may have been changed on the way.
    ///
    /// # Errors
    ///
    /// When it is not exactly the text that [`Self::to_text`] writes.
    pub fn from_text(text: &str) -> Result<Self, ParsePublicKeyError> {
        if text.len() > PUBLIC_KEY_FILE_LIMIT {
            return Err(ParsePublicKeyError::TooLong);
        }
        let text: String = text.trim().lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
        let (label, content) = pem_rfc7468::decode_vec(text.as_bytes()).map_err(ParsePublicKeyError::NotPem)?;
        if label != PUBLIC_KEY_PEM_LABEL {
            return Err(ParsePublicKeyError::AnotherKind { found: label.to_owned() });
        }
        let envelope = FORMAT.decode(&content).map_err(ParsePublicKeyError::NotWhole)?;
        let bytes = <[u8; 32]>::try_from(&envelope.payload[..]).ok();
        let key = bytes.and_then(Self::new).ok_or(ParsePublicKeyError::Unusable)?;
        if text == key.to_text() { Ok(key) } else { Err(ParsePublicKeyError::Changed) }
    }
}

impl fmt::Debug for RecoveryPublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RecoveryPublicKey({})", self.fingerprint())
    }
}

/// Why a text is not the public half of a recovery key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePublicKeyError {
    /// It is longer than [`PUBLIC_KEY_FILE_LIMIT`].
    #[error("it has more than {PUBLIC_KEY_FILE_LIMIT} bytes, which no recovery key needs; is it another file?")]
    TooLong,
    /// It is not PEM.
    #[error("it is not a text with a block \"BEGIN {PUBLIC_KEY_PEM_LABEL}\", or the block is damaged")]
    NotPem(#[source] pem_rfc7468::Error),
    /// It is PEM of another kind.
    #[error("it holds a \"{found}\" and no \"{PUBLIC_KEY_PEM_LABEL}\"")]
    AnotherKind {
        /// Label of what was found.
        found: String,
    },
    /// What it holds was damaged, or is of a newer format.
    #[error("the key in it cannot be used")]
    NotWhole(#[source] DecodeError),
    /// It holds 32 bytes to which nobody has the private half.
    #[error("the key in it is none that a person could have the words of")]
    Unusable,
    /// The key is whole and the text around it is not what belongs to it.
    #[error("the text around the key was changed: the file is not as it was written")]
    Changed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecoveryKey;

    #[test]
    fn the_text_leads_back_to_the_key() {
        let key = RecoveryKey::generate().public();
        let text = key.to_text();
        assert!(text.starts_with(&format!("Public half of the recovery key {}\n-----BEGIN POLIS", key.fingerprint())));
        assert!(text.len() < PUBLIC_KEY_FILE_LIMIT / 4);
        for same in [text.clone(), text.replace('\n', "\r\n"), format!("{text}\n\n"), text.trim().to_owned()] {
            assert_eq!(RecoveryPublicKey::from_text(&same), Ok(key), "{same:?}");
        }
    }

    #[test]
    fn every_changed_letter_and_every_cut_is_refused() {
        let key = RecoveryKey::generate().public();
        let text = key.to_text();
        for position in 0..text.len() {
            for letter in ['A', 'z', '0', '-', ' ', '\n'] {
                let mut changed = text.clone();
                changed.replace_range(position..=position, &letter.to_string());
                let found = RecoveryPublicKey::from_text(&changed);
                let same = changed.trim().lines().map(str::trim_end).eq(text.lines());
                assert_eq!(found.is_ok(), same, "{position} {letter:?}: {found:?}");
            }
            let cut = &text[..position];
            assert_eq!(RecoveryPublicKey::from_text(cut).is_ok(), cut == text.trim_end(), "{position}");
        }
    }

    #[test]
    fn other_files_are_named() {
        let text = RecoveryKey::generate().public().to_text();
        let newer = Format { version: 2, ..FORMAT };
        let pem = |label, content: &[u8]| pem_rfc7468::encode_string(label, LineEnding::LF, content).unwrap();
        let table = [
            (String::new(), "BEGIN POLIS RECOVERY PUBLIC KEY"),
            ("x".repeat(PUBLIC_KEY_FILE_LIMIT + 1), "another file"),
            (pem("CERTIFICATE", &[1; 64]), "\"CERTIFICATE\""),
            (pem(PUBLIC_KEY_PEM_LABEL, &FORMAT.encode(0, 0, &[0; 32]).unwrap()), "none that a person"),
            (pem(PUBLIC_KEY_PEM_LABEL, &FORMAT.encode(0, 0, &[9; 31]).unwrap()), "none that a person"),
            (pem(PUBLIC_KEY_PEM_LABEL, &[9; 80]), "cannot be used"),
            (text.replacen("Public", "Private", 1), "was changed"),
        ];
        for (text, expect) in table {
            let error = RecoveryPublicKey::from_text(&text).unwrap_err();
            assert!(error.to_string().contains(expect), "{expect}: {error}");
        }
        let text = pem(PUBLIC_KEY_PEM_LABEL, &newer.encode(0, 0, &[9; 32]).unwrap());
        assert_eq!(
            RecoveryPublicKey::from_text(&text),
            Err(ParsePublicKeyError::NotWhole(DecodeError::FutureVersion { found: 2, known: 1 }))
        );
    }

    #[test]
    fn points_of_small_order_are_no_keys() {
        // The points of order 1, 2, 4 and 8 that have an encoding below the prime: RFC 7748 and "Curve25519", D. J. Bernstein.
        let order_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
        let also_8 = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157";
        for hexadecimal in [&"00".repeat(32), &format!("01{}", "00".repeat(31)), order_8, also_8] {
            let bytes = hex::decode(hexadecimal).unwrap().try_into().unwrap();
            assert_eq!(RecoveryPublicKey::new(bytes), None, "{hexadecimal}");
        }
        let key = RecoveryKey::generate().public();
        assert_eq!(RecoveryPublicKey::new(*key.as_bytes()), Some(key));
    }
}
