//! Text that is safe to print on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Replaces everything that could drive a terminal: control characters become `\x1b` and the like, characters that
/// reorder or hide text become `\u{202e}` and the like, a tab becomes four spaces. Other text stays as it is.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        let written = match character {
            '\t' => safe.write_str("    "),
            _ if !is_unsafe(character) => safe.write_char(character),
            _ if u32::from(character) < 0x100 => write!(safe, "\\x{:02x}", u32::from(character)),
            _ => write!(safe, "{}", character.escape_unicode()),
        };
        // Writing into a string does not fail.
        written.unwrap_or_default();
    }
    Cow::Owned(safe)
}

fn is_unsafe(character: char) -> bool {
    // Besides the control characters: marks and overrides of writing direction, and the separators that some terminals
    // take for line breaks.
    character.is_control()
        || matches!(character, '\u{061c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
