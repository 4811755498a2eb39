//! The status page: a function from what is known to lines of text.

use polis_condition::{Condition, Severity};
use polis_logtree::console::sanitize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::overview::Overview;

/// Columns of the names on the left.
const NAME_COLUMNS: usize = 16;

/// Narrowest column of values: on a terminal that leaves less, names stand on lines of their own.
const LEAST_VALUE_COLUMNS: usize = 20;

/// The last line of each page.
pub(crate) const FOOTER: &str = "Tab: status / log";

/// The status page for a terminal of this size: at most `height` lines, none wider than `width` columns. What does not fit in
/// height is left out from below, and the last line before the footer then says how much; conditions are there by severity.
#[must_use]
pub fn status_page(overview: &Overview, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![format!("Polis {}", sanitize(&overview.version)), String::new()];
    let absent = || "-".to_owned();
    let state = if overview.state.is_empty() { "starting" } else { &overview.state };
    let roles = if overview.roles.is_empty() { absent() } else { overview.roles.join(", ") };
    for (name, value) in [
        ("State", state.to_owned()),
        ("Node", overview.node_id.clone().unwrap_or_else(absent)),
        ("Address", overview.address.clone().unwrap_or_else(absent)),
        ("Roles", roles),
        ("Cluster", overview.cluster_id.clone().unwrap_or_else(absent)),
        ("CA (SHA-256)", overview.ca_fingerprint.clone().unwrap_or_else(absent)),
    ] {
        field(name, &value, width, &mut lines);
    }
    if let Some(failure) = &overview.failure {
        lines.push(String::new());
        field("Failed", failure, width, &mut lines);
    }
    lines.push(String::new());
    if overview.conditions.is_empty() {
        lines.push("All is as it should be.".into());
    }
    let mut conditions: Vec<&Condition> = overview.conditions.iter().collect();
    conditions.sort_by_key(|condition| std::cmp::Reverse(condition.severity));
    for condition in conditions {
        let mark = match condition.severity {
            Severity::Info => "info",
            Severity::Warning => "WARNING",
            Severity::Error => "ERROR",
        };
        field(mark, &condition.message, width, &mut lines);
        if !condition.hint.is_empty() {
            field("", &format!("-> {}", condition.hint), width, &mut lines);
        }
    }
    fit(lines, width, height)
}

/// Cuts lines to a page of this size, with the footer at the bottom.
pub(crate) fn fit(mut lines: Vec<String>, width: usize, height: usize) -> Vec<String> {
    let room = height.saturating_sub(1);
    if lines.len() > room {
        let left_out = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        if room > 0 {
            lines.push(format!("... {left_out} more lines"));
        }
    }
    lines.resize(room, String::new());
    if height > 0 {
        lines.push(FOOTER.into());
    }
    lines.into_iter().map(|line| cut(&line, width)).collect()
}

/// A name and its value, which goes on below itself when it is too long for the line.
fn field(name: &str, value: &str, width: usize, lines: &mut Vec<String>) {
    let value = sanitize(value);
    let beside = width.saturating_sub(NAME_COLUMNS);
    if beside >= LEAST_VALUE_COLUMNS {
        for (at, piece) in wrap(&value, beside).into_iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            lines.push(format!("{name:NAME_COLUMNS$}{piece}"));
        }
    } else {
        if !name.is_empty() {
            lines.push(format!("{name}:"));
        }
        lines.extend(wrap(&value, width).into_iter().map(str::to_owned));
    }
}

/// Breaks a text into pieces of at most `room` columns, between words where that can be.
fn wrap(text: &str, room: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    for mut rest in text.lines() {
        let before = pieces.len();
        while rest.width() > room.max(1) {
            let fits = prefix(rest, room.max(1));
            // At the last blank that fits, or within a word that is longer than the line.
            let (piece, after) = match fits.rfind(' ').filter(|at| *at > 0) {
                Some(at) => (&rest[..at], &rest[at + 1..]),
                None => rest.split_at(fits.len().max(rest.chars().next().map_or(0, char::len_utf8))),
            };
            pieces.push(piece);
            rest = after;
        }
        if !rest.is_empty() || pieces.len() == before {
            pieces.push(rest);
        }
    }
    if pieces.is_empty() {
        pieces.push("");
    }
    pieces
}

/// The longest beginning of a text that fits.
fn prefix(text: &str, room: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, character)| {
        used += character.width().unwrap_or(0);
        used > room
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn cut(line: &str, width: usize) -> String {
    prefix(line, width).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(name: &str, severity: Severity, message: &str, hint: &str) -> Condition {
        let since = jiff::Timestamp::UNIX_EPOCH;
        Condition { name: name.into(), severity, since, message: message.into(), hint: hint.into() }
    }

    fn running() -> Overview {
        Overview {
            version: "0.1.0".into(),
            node_id: Some("metropolis-00112233445566778899aabbccddeeff".into()),
            cluster_id: Some("c0ffee".into()),
            ca_fingerprint: Some("ab".repeat(32)),
            address: Some("10.1.0.2".into()),
            roles: vec!["ConsensusMember".into()],
            state: "Running".into(),
            failure: None,
            conditions: vec![
                condition("clock", Severity::Info, "the clock is that of the hardware", ""),
                condition("disk", Severity::Error, "no space", "make room"),
            ],
        }
    }

    #[test]
    fn a_page_for_an_ordinary_screen() {
        let page = status_page(&running(), 80, 16).join("\n");
        let expected = "\
Polis 0.1.0

State           Running
Node            metropolis-00112233445566778899aabbccddeeff
Address         10.1.0.2
Roles           ConsensusMember
Cluster         c0ffee
CA (SHA-256)    abababababababababababababababababababababababababababababababab

ERROR           no space
                -> make room
info            the clock is that of the hardware



Tab: status / log";
        assert_eq!(page, expected);
    }

    #[test]
    fn a_page_of_a_node_that_knows_nothing_yet() {
        let page = status_page(&Overview::default(), 80, 12);
        assert_eq!(page[2], "State           starting");
        assert_eq!(page[3], "Node            -");
        assert!(page.contains(&"All is as it should be.".to_owned()), "{page:?}");
    }

    #[test]
    fn whatever_the_size_a_page_fits_it() {
        let mut overview = running();
        overview.failure =
            Some("a \u{1b}[31mlong reason with 漢字 and averyveryverylongwordthatdoesnotfitanywhere ".repeat(4));
        for width in [0, 1, 2, 5, 16, 17, 35, 36, 40, 80, 200] {
            for height in [0, 1, 2, 3, 10, 25, 60] {
                let page = status_page(&overview, width, height);
                assert_eq!(page.len(), height, "{width}x{height}");
                for line in &page {
                    assert!(line.width() <= width, "{width}x{height}: {line:?}");
                    assert!(!line.contains('\u{1b}'), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_in_height_is_counted() {
        let page = status_page(&running(), 80, 8);
        assert_eq!(page[6], "... 6 more lines");
        assert_eq!(page[7], FOOTER);
    }

    #[test]
    fn text_is_broken_between_words_where_that_can_be() {
        for (text, room, pieces) in [
            ("", 5, vec![""]),
            ("one two", 7, vec!["one two"]),
            ("one two", 6, vec!["one", "two"]),
            ("onetwothree", 4, vec!["onet", "woth", "ree"]),
            ("one\ntwo", 10, vec!["one", "two"]),
            ("漢字漢字", 5, vec!["漢字", "漢字"]),
            ("漢字", 1, vec!["漢", "字"]),
        ] {
            assert_eq!(wrap(text, room), pieces, "{text:?} in {room}");
        }
    }
}
