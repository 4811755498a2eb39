//! Asking a person for words without showing them.

use std::io::{self, BufRead as _, Stdin, Write as _};

use polis_recovery::WORDS_TEXT_LIMIT;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// How many words there are to come.
const WORDS: usize = 24;

/// What a terminal sends for Control-C.
const INTERRUPT: u8 = 0x03;

/// Asks at the terminal, line by line, until there are enough words or an empty line.
///
/// # Errors
///
/// When the terminal does not work, or the person has given up.
pub(super) fn ask() -> io::Result<Zeroizing<String>> {
    let mut output = io::stderr();
    output
        .write_all(b"The 24 words of the recovery key, in one line or several. They are not shown while you type.\n")?;
    let hidden = Hidden::new(io::stdin())?;
    let mut text = Zeroizing::new(String::with_capacity(WORDS_TEXT_LIMIT + 1));
    loop {
        let count = text.split_whitespace().filter(|word| word.bytes().any(|byte| byte.is_ascii_alphabetic())).count();
        if count >= WORDS || text.len() > WORDS_TEXT_LIMIT {
            break;
        }
        write!(output, "{count} of {WORDS}> ")?;
        output.flush()?;
        let mut terminal = hidden.terminal.lock();
        // A terminal gives one line at a time, which an interrupt ends as well.
        let line = terminal.fill_buf()?;
        output.write_all(b"\n")?;
        if line.contains(&INTERRUPT) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it was interrupted"));
        }
        if line.trim_ascii().is_empty() {
            break;
        }
        text.push_str(str::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?);
        let length = line.len();
        terminal.consume(length);
    }
    Ok(text)
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Hidden {
    terminal: Stdin,
    before: Termios,
}

impl Hidden {
    fn new(terminal: Stdin) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut hidden = before.clone();
        // An interrupt would end the process with the terminal as it is now; so it becomes the end of a line, which is looked at.
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}
