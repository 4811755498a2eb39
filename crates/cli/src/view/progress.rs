//! Progress of long work: plain lines, and on a terminal one line below them that says what is being waited for.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};

use super::safe;

/// Writes to the standard error, so that the result of a command stays alone on the standard output.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    /// A line without a line feed stands on the terminal and must be wiped before anything else is written.
    waiting: Cell<bool>,
}

impl Progress {
    pub(crate) fn start() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { terminal: std::io::stderr().is_terminal() && !dumb, waiting: Cell::new(false) }
    }

    /// A line that stays.
    pub(crate) fn line(&self, text: &str) {
        self.clear();
        // Progress that nobody reads is not worth an error.
        let _ = writeln!(std::io::stderr(), "{}", safe(text));
    }

    /// On a terminal, what is being waited for, until the next line.
    pub(crate) fn waiting(&self, text: &str) {
        if self.terminal {
            self.waiting.set(true);
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", safe(text));
        }
    }

    /// Wipes what is being waited for.
    pub(crate) fn clear(&self) {
        if self.waiting.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
