//! What people see.

mod common;

use std::sync::Arc;

use common::name;
use polis_logtree::console::{Style, concise, full, sanitize, shorten};
use polis_logtree::{DistinguishedName, Entry, Leveled, Location, Payload, Raw, Severity};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

fn entry(under: &str, payload: Payload) -> Entry {
    Entry { name: name(under), timestamp: "2026-01-02T15:04:05.000123Z".parse().unwrap(), payload }
}

fn leveled(under: &str, severity: Severity, text: &str) -> Entry {
    let location = Location { file: "crates/node/src/main.rs".into(), line: 12 };
    entry(under, Payload::Leveled(Leveled::new(severity, location, text)))
}

fn raw(under: &str, line: &[u8], original_length: usize) -> Entry {
    entry(under, Payload::Raw(Raw::new(line, original_length)))
}

fn width(width: usize) -> Style {
    Style { width: Some(width), ..Style::default() }
}

#[test]
fn a_full_line_is_complete_and_every_line_of_the_entry_has_it() {
    let cases = [
        (
            leveled("root.network", Severity::Info, "up"),
            "root.network                     I0102 15:04:05.000123 main.rs:12] up",
        ),
        (
            leveled("root.network", Severity::Warning, "one\n\n  two"),
            "root.network                     W0102 15:04:05.000123 main.rs:12] one\n\
             root.network                     W0102 15:04:05.000123 main.rs:12] \n\
             root.network                     W0102 15:04:05.000123 main.rs:12]   two",
        ),
        (raw("root.etcd", b"line", 4), "root.etcd                        R0102 15:04:05.000123 line"),
        (raw("root.etcd", b"line", 40), "root.etcd                        R0102 15:04:05.000123 line..."),
        (
            leveled("a.name.that.is.longer.than.its.column.is", Severity::Fatal, "end"),
            "a.name.that.is.longer.than.its.column.is F0102 15:04:05.000123 main.rs:12] end",
        ),
        (
            entry(
                "",
                Payload::Leveled(Leveled::new(Severity::Error, Location { file: "kernel".into(), line: 0 }, "oops")),
            ),
            "                                 E0102 15:04:05.000123 kernel] oops",
        ),
    ];
    for (entry, expected) in cases {
        assert_eq!(full(&entry, Style::default()).to_string(), expected);
    }
}

#[test]
fn a_concise_line_fits_the_console() {
    let long = "Something went wrong, and here is in many words what it was and why it cannot have been otherwise.";
    let cases = [
        (leveled("root.network", Severity::Info, "up"), None, "                 net I up"),
        (raw("root.etcd", b"line", 40), Some(80), "                etcd R line..."),
        (leveled("root.network", Severity::Info, "up"), Some(60), "             net I up"),
        (leveled("root.network", Severity::Info, "up"), Some(59), "I up"),
        (
            leveled("root.network", Severity::Error, long),
            Some(80),
            "                 net E Something went wrong, and here is in many words what it\n\
             \x20                    | was and why it cannot have been otherwise.",
        ),
        (
            leveled("root.network", Severity::Warning, &long[..52]),
            Some(30),
            "W Something went wrong, and\n| here is in many words what",
        ),
        (
            leveled("root.network", Severity::Info, "one\n\n  two"),
            None,
            "                 net I one\n                     | \n                     |   two",
        ),
        (
            leveled("root.network", Severity::Info, &"x".repeat(40)),
            Some(22),
            &format!("I {}\n| {}", "x".repeat(20), "x".repeat(20)),
        ),
        // Two columns each.
        (
            leveled("root.network", Severity::Info, "日本語日本語日本語日本語"),
            Some(20),
            "I 日本語日本語日本語\n| 日本語",
        ),
        (
            leveled("root.network", Severity::Info, "narrow terminals still show words"),
            Some(3),
            "I narrow terminals\n| still show words",
        ),
    ];
    for (entry, width, expected) in cases {
        let style = Style { width, ..Style::default() };
        assert_eq!(concise(&entry, style).to_string(), expected, "width {width:?}");
    }
}

#[test]
fn names_are_shortened_for_their_column() {
    let cases = [
        ("root.role.controlplane.launcher.consensus.autopromoter", 20, "cplane autopromoter"),
        ("networking.interfaces", 20, "net ifaces"),
        ("hostsfile", 20, "hostsfile"),
        ("root.dhcp-server", 20, "dhcp-server"),
        ("root.role.kubernetes.run.kubernetes.apiserver", 20, "k8s api"),
        ("some.very.long.dn.that.cant.be.shortened", 20, "...cant be shortened"),
        ("network.interfaces.dhcp", 20, "net ifaces dhcp"),
        ("root.role.kubernetes", 20, "k8s"),
        ("root.role", 20, "role"),
        ("root", 20, "root"),
        ("", 20, ""),
        ("root.consensus.etcd-of-this-node", 16, "...-of-this-node"),
        ("root.consensus", 2, "..."),
    ];
    for (text, width, expected) in cases {
        assert_eq!(shorten(&name(text), width), expected, "{text}");
    }
}

#[test]
fn a_child_cannot_drive_the_terminal() {
    let cases = [
        ("plain Text, ünïcode 日本 🙂", "plain Text, ünïcode 日本 🙂"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J\r\x08\x7f\0", "\\x1b[2J\\x0d\\x08\\x7f\\x00"),
        ("\u{9b}31m", "\\x9b31m"),
        ("a\tb", "a    b"),
        ("\u{202e}txt\u{2066}\u{200b}\u{2028}\u{feff}", "\\u{202e}txt\\u{2066}\\u{200b}\\u{2028}\\u{feff}"),
        ("a\nb", "a\\x0ab"),
    ];
    for (text, expected) in cases {
        assert_eq!(sanitize(text), expected);
    }
    let evil = "\x1b[31mred\x1b]0;title\x07\r";
    let file = Location { file: evil.into(), line: 1 };
    let payload = Payload::Leveled(Leveled::new(Severity::Info, file, evil));
    let entries = [
        raw("root.child", evil.as_bytes(), evil.len()),
        raw("root.child", b"\x9b31m\xff", 6),
        Entry { name: DistinguishedName::parse(evil).unwrap(), ..entry("", payload) },
    ];
    for entry in entries {
        for text in [full(&entry, Style::default()).to_string(), concise(&entry, width(80)).to_string()] {
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

#[test]
fn colour_is_there_only_when_asked_for_and_changes_nothing_else() {
    let severities = [Severity::Info, Severity::Warning, Severity::Error, Severity::Fatal];
    let mut entries: Vec<Entry> =
        severities.iter().map(|severity| leveled("root.network", *severity, "several words\nof text")).collect();
    entries.push(raw("root.etcd", b"several words", 13));
    for entry in &entries {
        for width in [None, Some(80), Some(30)] {
            let style = |colour| Style { width, colour };
            let renderings = [
                (full(entry, style(false)).to_string(), full(entry, style(true)).to_string()),
                (concise(entry, style(false)).to_string(), concise(entry, style(true)).to_string()),
            ];
            for (plain, coloured) in renderings {
                assert!(!plain.contains('\x1b') && coloured.contains('\x1b'));
                assert_eq!(strip_colour(&coloured), plain);
                assert!(coloured.lines().all(|line| line.ends_with("\x1b[0m")), "colour must not leak: {coloured:?}");
            }
        }
    }
}

fn strip_colour(text: &str) -> String {
    let mut pieces = text.split('\x1b');
    let first = pieces.next().unwrap_or_default().to_owned();
    first + &pieces.map(|piece| piece.split_once('m').unwrap().1).collect::<String>()
}

#[test]
fn an_entry_renders_the_same_through_an_arc() {
    let entry = Arc::new(leveled("root", Severity::Info, "shared"));
    assert!(full(&entry, Style::default()).to_string().ends_with("] shared"));
}

proptest! {
    /// Whatever the text: no line is wider than the terminal, nothing but spaces at breaks is lost, and no control
    /// character gets through.
    #[test]
    fn wrapping_keeps_the_text_and_the_width(
        text in "[a-z ä日\u{1b}\t\u{202e}]{0,200}",
        columns in 24..120_usize,
    ) {
        let entry = leveled("root.network", Severity::Info, &text);
        let rendered = concise(&entry, width(columns)).to_string();
        let prefix = match columns { 80.. => 23, 60.. => 19, _ => 2 };
        let mut words = String::new();
        for line in rendered.split('\n') {
            prop_assert!(line.width() <= columns, "{:?} is {} wide", line, line.width());
            prop_assert!(!line.contains(char::is_control));
            words.extend(line.chars().skip(prefix).filter(|character| *character != ' '));
        }
        let expected: String = sanitize(&text).chars().filter(|character| *character != ' ').collect();
        prop_assert_eq!(words, expected);
    }
}
