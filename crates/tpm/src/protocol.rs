//! The messages between Polis and the program `polis-tpm`.
//!
//! One conversation is one request on the program's standard input and one answer on its standard output; then the program ends.
//! A message is
//!
//! | bytes | content |
//! |---|---|
//! | 4 | length of what follows, at most [`MESSAGE_LIMIT`] |
//! | 2 | version of the protocol, 1 |
//! | 1 | which message it is: requests from 1, answers from 129 |
//! | n | its fields; one of no fixed length has its length before it, in 2 bytes |
//!
//! All numbers are big-endian. Both programs are built from one source; the version is there for the day on which somebody runs
//! an old one beside a new one.

use polis_secret::Secret32;
use polis_storage::journal::SealTrouble;
use zeroize::Zeroizing;

use crate::sealed_key::{DIGEST_LENGTH, PART_LIMIT, SealedKey};
use crate::tpm::TpmFacts;

/// Longest message in bytes, without its length: the longest has a sealed key of three parts, or a text for people.
pub const MESSAGE_LIMIT: usize = 8 * 1024;

/// Bytes before a message that say its length.
pub const LENGTH_BYTES: usize = 4;

/// Longest text of a failure in bytes; what is longer is cut.
const TEXT_LIMIT: usize = 4 * 1024;

const VERSION: u16 = 1;

/// What Polis wants of the TPM.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub enum Request {
    /// What it says of itself, if it could seal.
    Probe,
    /// Random bytes.
    Random {
        /// Random bytes of the kernel, to be mixed in.
        contribution: Secret32,
    },
    /// A new key, and the same key sealed.
    Seal {
        /// Random bytes of the kernel, to be mixed into the key.
        contribution: Secret32,
    },
    /// The key of this.
    Unseal {
        /// What was sealed.
        sealed: SealedKey,
    },
}

/// What came of it.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub enum Answer {
    /// To [`Request::Probe`].
    Facts(TpmFacts),
    /// To [`Request::Random`].
    Random(Secret32),
    /// To [`Request::Seal`].
    Sealed {
        /// The key, sealed.
        sealed: SealedKey,
        /// The key.
        key: Secret32,
    },
    /// To [`Request::Unseal`].
    Unsealed(Secret32),
    /// To any.
    Failed(Failure),
}

/// Why a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind of trouble it is.
    pub trouble: SealTrouble,
    /// For people: what failed, what it means, what would help.
    pub message: String,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The other side speaks another version.
    #[error("version {found} of the messages, and this program knows version {VERSION}")]
    Version {
        /// The version of the message.
        found: u16,
    },
    /// It is no whole message.
    #[error("a message that is not whole: {problem}")]
    Malformed {
        /// What is wrong with it.
        problem: &'static str,
    },
}

const PROBE: u8 = 1;
const RANDOM: u8 = 2;
const SEAL: u8 = 3;
const UNSEAL: u8 = 4;
const FACTS: u8 = 129;
const RANDOM_BYTES: u8 = 130;
const SEALED: u8 = 131;
const UNSEALED: u8 = 132;
const FAILED: u8 = 133;

/// The bytes of a request, its length before it.
#[must_use]
pub fn encode_request(request: &Request) -> Zeroizing<Vec<u8>> {
    match request {
        Request::Probe => Writer::new(PROBE),
        Request::Random { contribution } => Writer::new(RANDOM).fixed(contribution.expose()),
        Request::Seal { contribution } => Writer::new(SEAL).fixed(contribution.expose()),
        Request::Unseal { sealed } => Writer::new(UNSEAL).sealed(sealed),
    }
    .finish()
}

/// The request in `message`, which comes without its length.
///
/// # Errors
///
/// When it is none.
pub fn decode_request(message: &[u8]) -> Result<Request, ProtocolError> {
    let (kind, mut reader) = Reader::new(message)?;
    let request = match kind {
        PROBE => Request::Probe,
        RANDOM => Request::Random { contribution: Secret32::new(reader.fixed()?) },
        SEAL => Request::Seal { contribution: Secret32::new(reader.fixed()?) },
        UNSEAL => Request::Unseal { sealed: reader.sealed()? },
        0 | 5.. => return Err(malformed("there is no such request")),
    };
    reader.finish(request)
}

/// The bytes of an answer, its length before it.
#[must_use]
pub fn encode_answer(answer: &Answer) -> Zeroizing<Vec<u8>> {
    match answer {
        Answer::Facts(TpmFacts { manufacturer, firmware_version, boot_state }) => Writer::new(FACTS)
            .variable(cut(manufacturer, PART_LIMIT).as_bytes())
            .fixed(&firmware_version.to_be_bytes())
            .fixed(boot_state),
        Answer::Random(bytes) => Writer::new(RANDOM_BYTES).fixed(bytes.expose()),
        Answer::Sealed { sealed, key } => Writer::new(SEALED).sealed(sealed).fixed(key.expose()),
        Answer::Unsealed(key) => Writer::new(UNSEALED).fixed(key.expose()),
        Answer::Failed(Failure { trouble, message }) => {
            Writer::new(FAILED).fixed(&[trouble_number(*trouble)]).variable(cut(message, TEXT_LIMIT).as_bytes())
        }
    }
    .finish()
}

/// The answer in `message`, which comes without its length.
///
/// # Errors
///
/// When it is none.
pub fn decode_answer(message: &[u8]) -> Result<Answer, ProtocolError> {
    let (kind, mut reader) = Reader::new(message)?;
    let answer = match kind {
        FACTS => Answer::Facts(TpmFacts {
            manufacturer: reader.text(PART_LIMIT)?,
            firmware_version: u64::from_be_bytes(reader.fixed()?),
            boot_state: reader.fixed()?,
        }),
        RANDOM_BYTES => Answer::Random(Secret32::new(reader.fixed()?)),
        SEALED => Answer::Sealed { sealed: reader.sealed()?, key: Secret32::new(reader.fixed()?) },
        UNSEALED => Answer::Unsealed(Secret32::new(reader.fixed()?)),
        FAILED => Answer::Failed(Failure { trouble: reader.trouble()?, message: reader.text(TEXT_LIMIT)? }),
        0..=128 | 134.. => return Err(malformed("there is no such answer")),
    };
    reader.finish(answer)
}

const fn trouble_number(trouble: SealTrouble) -> u8 {
    match trouble {
        SealTrouble::NoDevice => 1,
        SealTrouble::NotAnswering => 2,
        SealTrouble::OtherDevice => 3,
        SealTrouble::OtherBootState => 4,
        SealTrouble::Damaged => 5,
        SealTrouble::HelperMissing => 6,
        SealTrouble::NotPermitted => 7,
    }
}

const fn malformed(problem: &'static str) -> ProtocolError {
    ProtocolError::Malformed { problem }
}

/// The longest beginning of `text` of at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.get(..end).unwrap_or_default()
}

/// Puts a message together. Its size is known before, so that no copy of a secret stays where it was moved away from.
struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    fn new(kind: u8) -> Self {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + MESSAGE_LIMIT));
        bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.push(kind);
        Self(bytes)
    }

    fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes with their length before them; not more than the limit of their field.
    fn variable(self, bytes: &[u8]) -> Self {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let bytes = bytes.get(..usize::from(length)).unwrap_or(bytes);
        self.fixed(&length.to_be_bytes()).fixed(bytes)
    }

    fn sealed(self, sealed: &SealedKey) -> Self {
        let SealedKey { storage_key_name, public, private, boot_state } = sealed;
        self.variable(storage_key_name).variable(public).variable(private).fixed(boot_state)
    }

    fn finish(mut self) -> Zeroizing<Vec<u8>> {
        let length = u32::try_from(self.0.len().saturating_sub(LENGTH_BYTES)).unwrap_or(u32::MAX);
        if let Some(place) = self.0.first_chunk_mut() {
            *place = length.to_be_bytes();
        }
        self.0
    }
}

/// Takes a message apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(message: &'a [u8]) -> Result<(u8, Self), ProtocolError> {
        if message.len() > MESSAGE_LIMIT {
            return Err(malformed("it is too long"));
        }
        let mut reader = Self(message);
        let found = u16::from_be_bytes(reader.fixed()?);
        if found != VERSION {
            return Err(ProtocolError::Version { found });
        }
        let [kind] = reader.fixed()?;
        Ok((kind, reader))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (taken, left) = self.0.split_first_chunk().ok_or(malformed("it is too short"))?;
        self.0 = left;
        Ok(*taken)
    }

    fn variable(&mut self, limit: usize) -> Result<&'a [u8], ProtocolError> {
        let length = usize::from(u16::from_be_bytes(self.fixed()?));
        if length > limit {
            return Err(malformed("a field is too long"));
        }
        let (taken, left) = self.0.split_at_checked(length).ok_or(malformed("it is too short"))?;
        self.0 = left;
        Ok(taken)
    }

    fn text(&mut self, limit: usize) -> Result<String, ProtocolError> {
        Ok(String::from_utf8_lossy(self.variable(limit)?).into_owned())
    }

    fn sealed(&mut self) -> Result<SealedKey, ProtocolError> {
        Ok(SealedKey {
            storage_key_name: self.variable(PART_LIMIT)?.to_vec(),
            public: self.variable(PART_LIMIT)?.to_vec(),
            private: self.variable(PART_LIMIT)?.to_vec(),
            boot_state: self.fixed::<DIGEST_LENGTH>()?,
        })
    }

    fn trouble(&mut self) -> Result<SealTrouble, ProtocolError> {
        match self.fixed()? {
            [1] => Ok(SealTrouble::NoDevice),
            [2] => Ok(SealTrouble::NotAnswering),
            [3] => Ok(SealTrouble::OtherDevice),
            [4] => Ok(SealTrouble::OtherBootState),
            [5] => Ok(SealTrouble::Damaged),
            [6] => Ok(SealTrouble::HelperMissing),
            [7] => Ok(SealTrouble::NotPermitted),
            [0 | 7..] => Err(malformed("there is no such trouble")),
        }
    }

    fn finish<T>(self, value: T) -> Result<T, ProtocolError> {
        if self.0.is_empty() { Ok(value) } else { Err(malformed("something follows its last field")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealed() -> SealedKey {
        SealedKey {
            storage_key_name: vec![1; 34],
            public: vec![2; 78],
            private: vec![3; 190],
            boot_state: [4; DIGEST_LENGTH],
        }
    }

    fn requests() -> Vec<Request> {
        let contribution = Secret32::new([7; 32]);
        vec![
            Request::Probe,
            Request::Random { contribution: contribution.clone() },
            Request::Seal { contribution },
            Request::Unseal { sealed: sealed() },
        ]
    }

    fn answers() -> Vec<Answer> {
        let facts =
            TpmFacts { manufacturer: "IBM".into(), firmware_version: u64::MAX - 1, boot_state: [9; DIGEST_LENGTH] };
        let troubles = [
            SealTrouble::NoDevice,
            SealTrouble::NotAnswering,
            SealTrouble::OtherDevice,
            SealTrouble::OtherBootState,
            SealTrouble::Damaged,
            SealTrouble::HelperMissing,
            SealTrouble::NotPermitted,
        ];
        let failed = troubles.map(|trouble| Answer::Failed(Failure { trouble, message: format!("{trouble:?}") }));
        let mut all = vec![
            Answer::Facts(facts),
            Answer::Random(Secret32::new([1; 32])),
            Answer::Sealed { sealed: sealed(), key: Secret32::new([2; 32]) },
            Answer::Unsealed(Secret32::new([3; 32])),
        ];
        all.extend(failed);
        all
    }

    fn body(message: &[u8]) -> &[u8] {
        let (length, body) = message.split_first_chunk().unwrap();
        assert_eq!(u32::from_be_bytes(*length) as usize, body.len());
        body
    }

    #[test]
    fn every_message_comes_back_and_none_is_two() {
        let mut seen = Vec::new();
        for request in requests() {
            let message = encode_request(&request);
            assert_eq!(decode_request(body(&message)), Ok(request));
            assert!(decode_answer(body(&message)).is_err());
            seen.push(message.to_vec());
        }
        for answer in answers() {
            let message = encode_answer(&answer);
            assert_eq!(decode_answer(body(&message)), Ok(answer));
            assert!(decode_request(body(&message)).is_err());
            seen.push(message.to_vec());
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), requests().len() + answers().len());
    }

    #[test]
    fn another_version_is_named() {
        let message = encode_request(&Request::Probe);
        let mut body = body(&message).to_vec();
        body[1] = 2;
        assert_eq!(decode_request(&body), Err(ProtocolError::Version { found: 2 }));
    }

    #[test]
    fn a_long_text_is_cut_between_letters() {
        let message = "ä".repeat(TEXT_LIMIT);
        let answer = encode_answer(&Answer::Failed(Failure { trouble: SealTrouble::Damaged, message }));
        let Ok(Answer::Failed(failure)) = decode_answer(body(&answer)) else { panic!("it is a failure") };
        assert_eq!(failure.message, "ä".repeat(TEXT_LIMIT / 2));
    }

    proptest! {
        #[test]
        fn a_message_that_was_cut_or_made_longer_is_none(which in 0..10_usize, cut: prop::sample::Index, more: u8) {
            let answers = answers();
            let message = encode_answer(&answers[which]);
            let body = body(&message);
            prop_assert!(decode_answer(&body[..cut.index(body.len())]).is_err());
            prop_assert!(decode_answer(&[body, &[more]].concat()).is_err());
        }

        #[test]
        fn noise_is_never_a_panic(noise in prop::collection::vec(any::<u8>(), 0..128)) {
            let _ = (decode_answer(&noise), decode_request(&noise));
            let with_version = [&VERSION.to_be_bytes()[..], &noise].concat();
            let _ = (decode_answer(&with_version), decode_request(&with_version));
        }
    }
}
