//! Taking out of a text whatever could be a secret.
//!
//! Secrets are types that cannot be printed, so nothing should be found. This is the second wall, for what leaves the
//! machine: it goes by form, and rather takes a public key with it than leave a private one.

use std::borrow::Cow;

/// Hexadecimal digits of 32 bytes, the size of every key and token of Polis. A node id and a cluster id are half as long and stay.
const HEX_DIGITS: usize = 64;
/// Characters of base64 without padding that 32 bytes take.
const BASE64_CHARACTERS: usize = 43;
/// Numbers in a printed list of bytes from which on it is taken for a key: no other list of a node's messages is that long.
const LISTED_BYTES: usize = 16;

/// Takes out of `text` whatever has the form of a key or a token: private keys in PEM, 32 bytes or more in hexadecimal digits,
/// in base64 or as a list of numbers, and what stands for a user in a URL.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut result = Cow::Borrowed(text);
    for find in [pem, user_of_url, byte_list, run_of_characters] {
        if let Some(changed) = replace(&result, find) {
            result = Cow::Owned(changed);
        }
    }
    result
}

/// What looks for a secret: given a text, the first place where one begins and how long it is, and what to put there.
type Find = fn(&str) -> Option<(usize, usize, &'static str)>;

fn replace(text: &str, find: Find) -> Option<String> {
    let mut rest = text;
    let mut result = String::new();
    while let Some((start, length, replacement)) = find(rest) {
        result.push_str(&rest[..start]);
        result.push_str(replacement);
        rest = &rest[start + length..];
    }
    if rest.len() == text.len() {
        return None;
    }
    result.push_str(rest);
    Some(result)
}

fn pem(text: &str) -> Option<(usize, usize, &'static str)> {
    let label = text.find("PRIVATE KEY-----")?;
    let start = text[..label].rfind("-----BEGIN").unwrap_or(label);
    let after = label + "PRIVATE KEY-----".len();
    // What is cut off in the middle is a secret all the same.
    let end = text[after..].find("PRIVATE KEY-----").map_or(text.len(), |at| after + at + "PRIVATE KEY-----".len());
    Some((start, end - start, "<redacted: private key>"))
}

fn user_of_url(text: &str) -> Option<(usize, usize, &'static str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find("://") {
        let start = from + found + "://".len();
        let authority = text[start..]
            .find(|character: char| character == '/' || character == '"' || character.is_whitespace())
            .map_or(&text[start..], |end| &text[start..start + end]);
        if let Some(at) = authority.rfind('@').filter(|at| &authority[..*at] != USER) {
            return Some((start, at, USER));
        }
        from = start;
    }
    None
}

/// What stands for a user in a URL afterwards.
const USER: &str = "<redacted>";

fn byte_list(text: &str) -> Option<(usize, usize, &'static str)> {
    let bytes = text.as_bytes();
    let is_filler = |byte: u8| byte.is_ascii_whitespace() || byte == b',';
    let mut start = 0;
    while start < bytes.len() {
        if !bytes[start].is_ascii_digit() {
            start += 1;
            continue;
        }
        let (mut at, mut count, mut end) = (start, 0, start);
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if text[at..at + digits].parse::<u8>().is_err() {
                break;
            }
            count += 1;
            at += digits;
            end = at;
            let filler = bytes[at..].iter().take_while(|byte| is_filler(**byte)).count();
            if !bytes[at..at + filler].contains(&b',') {
                break;
            }
            at += filler;
        }
        if count >= LISTED_BYTES {
            return Some((start, end - start, "<redacted: list of bytes>"));
        }
        // Numbers that were looked at do not begin a longer list.
        start = end.max(start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count());
    }
    None
}

fn run_of_characters(text: &str) -> Option<(usize, usize, &'static str)> {
    let bytes = text.as_bytes();
    let is_hex = |byte: &&u8| byte.is_ascii_hexdigit();
    let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    let mut start = 0;
    while start < bytes.len() {
        let length = bytes[start..].iter().take_while(is_base64).count();
        let run = &bytes[start..start + length];
        if length >= BASE64_CHARACTERS {
            // Names of files and tests are long too; 32 random bytes in base64 without one capital or one small letter are
            // rarer than a broken disk.
            let mixed = run.iter().any(u8::is_ascii_uppercase) && run.iter().any(u8::is_ascii_lowercase);
            let mut hex_start = 0;
            while hex_start < run.len() {
                let digits = run[hex_start..].iter().take_while(is_hex).count();
                if digits >= HEX_DIGITS {
                    return Some((start + hex_start, digits, "<redacted: hexadecimal digits>"));
                }
                hex_start += digits + 1;
            }
            if mixed {
                let padding = bytes[start + length..].iter().take_while(|byte| **byte == b'=').count();
                return Some((start, length + padding, "<redacted: base64>"));
            }
        }
        start += length.max(1);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_form_of_a_key_goes() {
        let bytes: Vec<u8> = (0..32u8).map(|number| number.wrapping_mul(37).wrapping_add(11)).collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let base64 = "CzBVep/E6Q4zWH2ix+wRNluApcrvFDlehKnO8xg9Yoc";
        let table = [
            (format!("key {hex} end"), "key <redacted: hexadecimal digits> end"),
            (format!("KEY={}", hex.to_uppercase()), "KEY=<redacted: hexadecimal digits>"),
            (format!("data/{hex}"), "data/<redacted: hexadecimal digits>"),
            (format!("key {base64}= end"), "key <redacted: base64> end"),
            (format!("\"{}\"", base64.replace('/', "_")), "\"<redacted: base64>\""),
            (format!("Secret({bytes:?})"), "Secret([<redacted: list of bytes>])"),
            (format!("{bytes:#?}"), "[\n    <redacted: list of bytes>,\n]"),
            (format!("{bytes:?} {bytes:?}"), "[<redacted: list of bytes>] [<redacted: list of bytes>]"),
            (
                "a -----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY----- b".to_owned(),
                "a <redacted: private key> b",
            ),
            ("-----BEGIN EC PRIVATE KEY-----\nMC4C".to_owned(), "<redacted: private key>"),
            ("proxy http://polis:secret@127.0.0.1:1/x".to_owned(), "proxy http://<redacted>@127.0.0.1:1/x"),
        ];
        for (text, expect) in table {
            assert_eq!(redact(&text), expect, "{text}");
            assert_eq!(redact(expect), expect, "once is enough");
        }
    }

    #[test]
    fn everything_else_stays() {
        let table = [
            "",
            "metropolis-00112233445566778899aabbccddeeff of 21fe31dfa154a261626bf854046fd227",
            "/var/lib/polis/nodes/somewhere/deep/below/data/etcd/data/member/snap",
            "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]",
            "2026-11-30T10:20:30.123456Z https://[fd00:1:2:3:4:5:6:7]:7834/raft",
            "1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 1015, 1016",
            "Größe ist kein Schlüssel, und ein Satz auch nicht",
        ];
        for text in table {
            assert!(matches!(redact(text), Cow::Borrowed(same) if same == text), "{text} became {}", redact(text));
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        for text in ["://@", "://", "é://ü@ß", "PRIVATE KEY-----", "1,", ",1", "1,é", "a".repeat(100).as_str()] {
            let _ = redact(text);
        }
    }
}
