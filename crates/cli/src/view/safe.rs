//! Text that cannot drive a terminal.
//!
//! Much of what is shown was written by others: the last words of etcd, names in a parameters file, what a node at the
//! other end says of itself. All texts for people pass through here on their way out.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::paint;

/// Replaces everything but line feeds, tabs and our own colours that a terminal would act upon: control characters become
/// `\x1b` and the like, characters that reorder or hide text become `\u{202e}` and the like.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(start) = rest.find(is_unsafe) {
        let (plain, found) = rest.split_at(start);
        written.push_str(plain);
        rest = match (paint::leading_colour(found), found.chars().next()) {
            (Some(colour), _) => {
                written.push_str(colour);
                &found[colour.len()..]
            }
            (None, Some(character)) => {
                // Writing into a string does not fail.
                let _ = if u32::from(character) < 0x100 {
                    write!(written, "\\x{:02x}", u32::from(character))
                } else {
                    write!(written, "{}", character.escape_unicode())
                };
                &found[character.len_utf8()..]
            }
            (None, None) => found,
        };
    }
    written.push_str(rest);
    Cow::Owned(written)
}

/// As [`safe`], for JSON and for what is written in its way: there these characters can only stand in strings, and the
/// escape means the same. JSON itself demands it of the control characters of ASCII only, YAML of all that are not printable.
pub(crate) fn safe_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut written = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unsafe(character) {
            let _ = write!(written, "\\u{:04x}", u32::from(character));
        } else {
            written.push(character);
        }
    }
    Cow::Owned(written)
}

fn is_unsafe(character: char) -> bool {
    // Besides the control characters: marks and overrides of writing direction, what has no width, and the separators that
    // some terminals take for line breaks.
    let moves = character.is_control() && !matches!(character, '\n' | '\t');
    let hides = matches!(
        character,
        '\u{061c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    moves || hides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Paint;

    #[test]
    fn nothing_that_drives_a_terminal_is_left() {
        for (text, shown) in [
            ("plain, \u{fc}ber\n\ttwo lines", "plain, \u{fc}ber\n\ttwo lines"),
            ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
            ("a\rb\x08c\x7f\0", r"a\x0db\x08c\x7f\x00"),
            ("\u{9b}2J", r"\x9b2J"),
            ("\u{202e}txt.exe\u{2066}", r"\u{202e}txt.exe\u{2066}"),
            ("\x1b[8mhidden", r"\x1b[8mhidden"),
            ("\x1b[1", r"\x1b[1"),
            ("\x1b", r"\x1b"),
        ] {
            assert_eq!(safe(text), shown, "{text:?}");
        }
    }

    #[test]
    fn json_says_the_same_without_it() {
        let text = "\u{1b}[2J\u{9b}2J\u{7f}\u{85}\u{202e}\u{feff}\u{fc}\u{1f600}\n\t\"";
        let plain = serde_json::to_string(text).unwrap();
        let json = safe_json(&plain);
        assert!(plain.contains('\u{9b}') && !json.contains(is_unsafe), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn our_own_colours_stay() {
        let paint = Paint::always();
        for painted in [paint.bold("b"), paint.dim("d"), paint.red("r"), paint.green("g"), paint.yellow("y")] {
            assert!(painted.contains('\x1b'));
            assert_eq!(safe(&painted), painted);
        }
    }
}
