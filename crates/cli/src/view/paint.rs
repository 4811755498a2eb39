//! Colour, where it is wanted.

use std::io::IsTerminal;

/// How a terminal is told of a colour: this, a code, and [`END`] (ECMA-48, SGR).
const START: &str = "\x1b[";
const END: &str = "m";

/// The codes of what is used here.
const PLAIN: &str = "0";
const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "1;31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

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

    /// Always colour.
    #[cfg(test)]
    pub(crate) const fn always() -> Self {
        Self { enabled: true }
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
        self.wrap(BOLD, text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap(DIM, text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap(RED, text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap(GREEN, text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap(YELLOW, text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.enabled && !text.is_empty() {
            format!("{START}{code}{END}{text}{START}{PLAIN}{END}")
        } else {
            text.to_owned()
        }
    }
}

/// What `text` begins with, if that is a colour of ours.
pub(super) fn leading_colour(text: &str) -> Option<&str> {
    let codes = text.strip_prefix(START)?;
    let code = [PLAIN, BOLD, DIM, RED, GREEN, YELLOW]
        .into_iter()
        .find(|code| codes.strip_prefix(code).is_some_and(|rest| rest.starts_with(END)))?;
    Some(&text[..START.len() + code.len() + END.len()])
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
