//! The rule for names of runnables and sub-loggers.

/// The longest name. A distinguished name is made of at most [`MAX_DEPTH`](crate::MAX_DEPTH) of them.
pub const MAX_NAME_LENGTH: usize = 63;

/// The rule in words, for error messages.
pub(crate) const RULE: &str = "1 to 63 characters of a-z, 0-9, - and _, of which the first and the last are a-z or 0-9";

/// True when the whole of `name` keeps the rule: 1 to 63 characters of `a-z`, `0-9`, `-` and `_`, of which the first
/// and the last are `a-z` or `0-9`. Metropolis' rule was not anchored and let nearly everything pass (metropolis.md A.1).
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    let letter_or_digit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=MAX_NAME_LENGTH).contains(&bytes.len())
        && bytes.iter().all(|&byte| letter_or_digit(byte) || byte == b'-' || byte == b'_')
        && [bytes[0], bytes[bytes.len() - 1]].into_iter().all(letter_or_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_holds_for_the_whole_name() {
        let longest = "a".repeat(MAX_NAME_LENGTH);
        for name in ["a", "0", "a-b", "a_b", "etcd-3", "a--b", &longest] {
            assert!(is_valid_name(name), "{name}");
        }
        let too_long = "a".repeat(MAX_NAME_LENGTH + 1);
        for name in [
            "",
            "-",
            "_",
            "-a",
            "a-",
            "_a",
            "a_",
            "A",
            "aB",
            "a.b",
            "a b",
            " a",
            "a\n",
            "ä",
            "aäb",
            "/dev/tty0",
            "console-/dev/tty0",
            "a\0b",
            &too_long,
        ] {
            assert!(!is_valid_name(name), "{name:?}");
        }
    }
}
