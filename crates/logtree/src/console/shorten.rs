//! Short forms of distinguished names for narrow columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::sanitize;
use crate::DistinguishedName;

/// Words with a usual short form.
const DICTIONARY: [(&str, &str); 12] = [
    ("kubernetes", "k8s"),
    ("controlplane", "cplane"),
    ("controller", "ctrl"),
    ("apiserver", "api"),
    ("network", "net"),
    ("networking", "net"),
    ("interfaces", "ifaces"),
    ("management", "mgmt"),
    ("certificates", "certs"),
    ("configuration", "config"),
    ("supervisor", "super"),
    ("scheduler", "sched"),
];

/// Marks where the beginning of a name was left out.
const CUT: &str = "...";

/// The name in at most `width` columns (metropolis.md B.4): without the leading `root`, of a chain below `role` only the
/// first and the last part, well-known words in their short form, parts separated by spaces; if that is still too long,
/// the end of it behind `...`, which takes three columns itself.
pub fn shorten(name: &DistinguishedName, width: usize) -> String {
    let mut parts: Vec<&str> = name.parts().collect();
    if parts.len() > 1 && parts[0] == "root" {
        parts.remove(0);
    }
    if parts.len() > 1 && parts[0] == "role" {
        parts.remove(0);
        if parts.len() > 2 {
            parts.drain(1..parts.len() - 1);
        }
    }
    for part in &mut parts {
        if let Some((_, short)) = DICTIONARY.iter().find(|(word, _)| word == part) {
            *part = short;
        }
    }
    cut_left(&sanitize(&parts.join(" ")), width)
}

fn cut_left(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let room = width.saturating_sub(CUT.len());
    let mut used = 0;
    let end = text.char_indices().rev().take_while(|(_, character)| {
        used += character.width().unwrap_or(0);
        used <= room
    });
    let from = end.last().map_or(text.len(), |(at, _)| at);
    format!("{CUT}{}", text[from..].trim_start())
}
