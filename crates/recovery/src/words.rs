//! A recovery key as words: how a person keeps it.
//!
//! The words are those of BIP-39 in English: 24 words hold the 256 bits of the key and a checksum of eight bits. The first four
//! letters of each are like those of no other. Of 256 wrong words or swaps the checksum lets one pass: the words are then those
//! of some other key, which shows in its fingerprint, and which opens nothing.

use std::fmt;

use bip39::{Error, Language, Mnemonic};
use polis_secret::Secret32;
use zeroize::Zeroizing;

use crate::RecoveryKey;

/// How many words there are.
const WORDS: usize = 24;
/// Longest text of words that is looked at, in bytes: words of at most eight letters, each on a line with its number and some air.
pub const WORDS_TEXT_LIMIT: usize = 4096;
/// How many letters may be wrong for a word to be taken for a slip.
const SLIP_LETTERS: usize = 3;

/// A recovery key as 24 words. Has neither `Display` nor a `Debug` that shows them: they open every node of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryWords(Mnemonic);

impl RecoveryWords {
    /// The words of `key`.
    pub(crate) fn of(key: &RecoveryKey) -> Self {
        let mnemonic = Mnemonic::from_entropy_in(Language::English, key.secret().expose());
        Self(mnemonic.expect("32 bytes have words"))
    }

    /// Reads words as people write them: in any case, in any number of lines, with or without the number before each.
    ///
    /// # Errors
    ///
    /// When they are not the words of a key: which of the three checks failed. Errors name a wrong word, so they are for the eyes
    /// of the one who has typed it, and for no log.
    pub fn parse(text: &str) -> Result<Self, ParseWordsError> {
        if text.len() > WORDS_TEXT_LIMIT {
            return Err(ParseWordsError::TooLong);
        }
        let lower = Zeroizing::new(text.to_lowercase());
        let words = Zeroizing::new(words_of(&lower).collect::<Vec<_>>().join(" "));
        let found = words_of(&words).count();
        if found != WORDS {
            return Err(ParseWordsError::Count { found });
        }
        match Mnemonic::parse_in_normalized(Language::English, &words) {
            Ok(mnemonic) => Ok(Self(mnemonic)),
            Err(Error::UnknownWord(index)) => {
                let word = words_of(&words).nth(index).unwrap_or_default();
                Err(ParseWordsError::Unknown { position: index + 1, word: word.to_owned(), nearest: nearest(word) })
            }
            // The other errors are of languages and numbers of words that were not asked for.
            Err(
                Error::InvalidChecksum
                | Error::BadWordCount(_)
                | Error::BadEntropyBitCount(_)
                | Error::AmbiguousLanguages(_),
            ) => Err(ParseWordsError::Checksum),
        }
    }

    /// The key that the words are of.
    #[must_use]
    pub fn to_key(&self) -> RecoveryKey {
        let (entropy, length) = self.0.to_entropy_array();
        let entropy = Zeroizing::new(entropy);
        RecoveryKey::from_secret(Secret32::try_from(&entropy[..length]).expect("24 words are of 32 bytes"))
    }

    /// The words in their order. Hand them to the one who is to keep them and to nothing that logs or stores.
    pub fn expose(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.words()
    }
}

impl fmt::Debug for RecoveryWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecoveryWords(..)")
    }
}

/// The words of a text, without the numbers that a person or a terminal has put before them.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let is_number = |word: &str| word.trim_end_matches(['.', ')', ':']).bytes().all(|byte| byte.is_ascii_digit());
    text.split_whitespace().filter(move |word| !is_number(word))
}

/// The word that was meant, if some word is close enough.
fn nearest(word: &str) -> Option<&'static str> {
    let distances =
        Language::English.word_list().iter().map(|known| (strsim::damerau_levenshtein(word, known), *known));
    distances
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= SLIP_LETTERS)
        .map(|(_, known)| known)
}

/// Which check says that words are not those of a recovery key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseWordsError {
    /// The text is longer than [`WORDS_TEXT_LIMIT`].
    #[error("the text has more than {WORDS_TEXT_LIMIT} bytes, which {WORDS} words do not need; is it another file?")]
    TooLong,
    /// The number of words.
    #[error("a recovery key has {WORDS} words, and here are {found}")]
    Count {
        /// How many there are.
        found: usize,
    },
    /// A word that no recovery key has.
    #[error(
        "word {position}, \"{}\", is no word of a recovery key{}",
        word.escape_debug(), nearest.map(|nearest| format!("; the nearest one is \"{nearest}\"")).unwrap_or_default()
    )]
    Unknown {
        /// Which one, from 1.
        position: usize,
        /// The word.
        word: String,
        /// The one that was meant, perhaps.
        nearest: Option<&'static str>,
    },
    /// Each word is one of a recovery key, and together they are none.
    #[error("each word is known, but the checksum is wrong: one word is wrong, or two are swapped")]
    Checksum,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Entropy of 32 times 0x7f: a published test vector of BIP-39.
    const VECTOR: &str = "legal winner thank year wave sausage worth useful legal winner thank year wave sausage worth \
                          useful legal winner thank year wave sausage worth title";

    fn text(words: &[&str]) -> String {
        words.join(" ")
    }

    fn key(bytes: [u8; 32]) -> RecoveryKey {
        RecoveryKey::from_secret(Secret32::new(bytes))
    }

    #[test]
    fn the_words_are_those_of_the_published_vector() {
        let words = key([0x7f; 32]).to_words();
        assert_eq!(text(&words.expose().collect::<Vec<_>>()), VECTOR);
        assert_eq!(RecoveryWords::parse(VECTOR).unwrap().to_key(), key([0x7f; 32]));
        assert_eq!(format!("{words:?}"), "RecoveryWords(..)");
    }

    #[test]
    fn people_may_write_them_as_they_like() {
        let numbered = |mark: &str| {
            let lines = VECTOR.split(' ').zip(1..).map(|(word, number)| format!("{number:>2}{mark} {word}"));
            lines.collect::<Vec<_>>().join("\n")
        };
        let table = [
            VECTOR.to_uppercase(),
            VECTOR.replace(' ', "\r\n"),
            format!("  {}\n", VECTOR.replace(' ', "\t  ")),
            numbered(""),
            numbered("."),
            numbered(")"),
        ];
        for text in table {
            assert_eq!(RecoveryWords::parse(&text).unwrap().to_key(), key([0x7f; 32]), "{text}");
        }
    }

    #[test]
    fn the_error_says_which_check_failed() {
        let words: Vec<_> = VECTOR.split(' ').collect();
        let with = |index: usize, word: &'static str| {
            let mut words = words.clone();
            words[index] = word;
            text(&words)
        };
        let unknown = |position, word: &str, nearest| ParseWordsError::Unknown { position, word: word.into(), nearest };
        let mut swapped = words.clone();
        swapped.swap(0, 1);
        let table = [
            (String::new(), ParseWordsError::Count { found: 0 }),
            (text(&words[..23]), ParseWordsError::Count { found: 23 }),
            (text(&words[..12]), ParseWordsError::Count { found: 12 }),
            (format!("{VECTOR} title"), ParseWordsError::Count { found: 25 }),
            (with(4, "wav"), unknown(5, "wav", Some("wave"))),
            (with(23, "titel"), unknown(24, "titel", Some("title"))),
            (with(0, "xyzzyxyzzy"), unknown(1, "xyzzyxyzzy", None)),
            (with(1, "wïnner"), unknown(2, "wïnner", Some("winner"))),
            (with(3, "zoo"), ParseWordsError::Checksum),
            (text(&swapped), ParseWordsError::Checksum),
            ("a ".repeat(WORDS_TEXT_LIMIT), ParseWordsError::TooLong),
        ];
        for (text, expect) in table {
            assert_eq!(RecoveryWords::parse(&text).unwrap_err(), expect, "{text}");
        }
        let shown = RecoveryWords::parse(&with(4, "wav")).unwrap_err().to_string();
        assert_eq!(shown, "word 5, \"wav\", is no word of a recovery key; the nearest one is \"wave\"");
    }

    proptest! {
        #[test]
        fn words_lead_back_to_their_key(bytes: [u8; 32]) {
            let key = key(bytes);
            let words: Vec<_> = key.to_words().expose().collect();
            prop_assert_eq!(words.len(), WORDS);
            prop_assert_eq!(RecoveryWords::parse(&text(&words)).unwrap().to_key(), key);
        }

        /// The checksum has eight bits; what it lets pass is another key with another name.
        #[test]
        fn a_wrong_word_or_a_swap_is_never_the_same_key(
            bytes: [u8; 32], at in 0..WORDS, other in 0..WORDS, word in 0..2048_usize
        ) {
            let key = key(bytes);
            let words: Vec<_> = key.to_words().expose().collect();
            let (mut wrong, mut swapped) = (words.clone(), words.clone());
            wrong[at] = Language::English.word_list()[word];
            swapped.swap(at, other);
            for changed in [wrong, swapped] {
                match RecoveryWords::parse(&text(&changed)) {
                    Ok(found) if changed == words => prop_assert_eq!(found.to_key(), key.clone()),
                    Ok(found) => prop_assert_ne!(found.to_key().fingerprint(), key.fingerprint()),
                    Err(error) => prop_assert_eq!(error, ParseWordsError::Checksum),
                }
            }
        }

        #[test]
        fn noise_is_never_a_panic(text in ".{0,200}") {
            prop_assert!(RecoveryWords::parse(&text).is_err());
        }
    }

    #[test]
    fn the_checksum_finds_nearly_every_wrong_word() {
        let words: Vec<_> = key([0x7f; 32]).to_words().expose().collect();
        let mut passed = 0;
        for at in 0..WORDS {
            for word in Language::English.word_list() {
                let mut wrong = words.clone();
                wrong[at] = word;
                passed += usize::from(wrong != words && RecoveryWords::parse(&text(&wrong)).is_ok());
            }
        }
        // 24 * 2047 / 256 are expected; three times as many would be another checksum.
        assert!((1..3 * 192).contains(&passed), "{passed}");
    }
}
