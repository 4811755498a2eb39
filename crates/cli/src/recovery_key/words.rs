//! Where the words of a recovery key come from: a file, a pipe, or a person.

use std::io::{self, IsTerminal as _, Read};
use std::path::Path;

use polis_recovery::{RecoveryKey, RecoveryWords, WORDS_TEXT_LIMIT};
use zeroize::Zeroizing;

use super::prompt;
use crate::bounded_file;
use crate::failure::Failure;

/// Reads the words from a file, or, for `-`, from a person at the terminal or from the standard input.
///
/// # Errors
///
/// When there are none, or they are no recovery key: which check failed.
pub(crate) fn read(source: &Path) -> Result<RecoveryKey, Failure> {
    let text = if source != Path::new("-") {
        from_file(source)
    } else if io::stdin().is_terminal() {
        prompt::ask()
    } else {
        to_text(io::stdin().lock())
    };
    let text = text.map_err(|error| {
        Failure::failed("the words of the recovery key could not be read")
            .because(&error)
            .hint("name a file with the 24 words, or - to be asked for them")
    })?;
    RecoveryWords::parse(&text).map(|words| words.to_key()).map_err(|error| {
        Failure::failed("these are not the words of a recovery key").because(&error).hint(
            "compare them with what you have written down: the order counts, and the first four letters tell each word from all \
             others",
        )
    })
}

fn from_file(path: &Path) -> io::Result<Zeroizing<String>> {
    let bytes = Zeroizing::new(bounded_file::read(path, limit())?);
    to_text(&bytes[..])
}

fn to_text(from: impl Read) -> io::Result<Zeroizing<String>> {
    // Room for all of it, so that no copy of the words stays behind where the string grew.
    let mut text = Zeroizing::new(String::with_capacity(WORDS_TEXT_LIMIT + 1));
    from.take(limit()).read_to_string(&mut text)?;
    Ok(text)
}

/// One byte more than there may be tells a longer text.
fn limit() -> u64 {
    u64::try_from(WORDS_TEXT_LIMIT).unwrap_or(u64::MAX).saturating_add(1)
}
