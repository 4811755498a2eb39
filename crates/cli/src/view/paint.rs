//! Colour, where it is wanted.

use std::io::IsTerminal;

/// Puts colour around text, or leaves it as it is.
///
/// Colour is used on a terminal only, and never when `NO_COLOR` is set to anything (no-color.org).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    enabled: bool,
}

impl Paint {
    /// Never any colour, for texts that are compared.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { enabled: false }
    }

    /// For text that goes to the standard output.
    pub(crate) fn for_stdout() -> Self {
        Self::for_stream(&std::io::stdout())
    }

    /// For text that goes to the standard error.
    pub(crate) fn for_stderr() -> Self {
        Self::for_stream(&std::io::stderr())
    }

    fn for_stream(stream: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { enabled: stream.is_terminal() && !unwanted && !dumb }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.enabled && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Width of `text` on a terminal: colour takes no room. Texts of ours are one column per character.
pub(crate) fn width(text: &str) -> usize {
    let mut width = 0;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            characters.by_ref().find(|end| *end == 'm');
        } else {
            width += 1;
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_takes_no_room() {
        let paint = Paint { enabled: true };
        assert_eq!(paint.red("x"), "\x1b[1;31mx\x1b[0m");
        assert_eq!(width(&format!("{} {}", paint.red("abc"), paint.dim("de"))), 6);
        assert_eq!(Paint::plain().red("x"), "x");
    }
}
