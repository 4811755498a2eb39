//! Text that can be pasted into a shell.

use std::path::Path;

/// The path as one word of a POSIX shell.
pub(crate) fn quote(path: &Path) -> String {
    let text = path.to_string_lossy();
    let safe = |character: char| character.is_ascii_alphanumeric() || "/._-+:@%,=".contains(character);
    if !text.is_empty() && text.chars().all(safe) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_it_is_quoted() {
        let check = |path: &str, text: &str| assert_eq!(quote(Path::new(path)), text);
        check("/home/a/.local/state/polis", "/home/a/.local/state/polis");
        check("/my dir", "'/my dir'");
        check("it's", r"'it'\''s'");
        check("", "''");
        check("$HOME", "'$HOME'");
    }
}
