//! Rendering of entries.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{sanitize, shorten};
use crate::{Entry, Payload, Severity};

/// Columns of the name in a full line (metropolis.md B.4). A longer name pushes the rest to the right.
const FULL_NAME_COLUMNS: usize = 32;

/// Narrowest text column of a concise line: on a terminal that leaves less, lines are longer than the terminal rather
/// than one word each.
const LEAST_TEXT_COLUMNS: usize = 16;

/// How to render.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal; `None` when there is no such limit. Only concise rendering wraps.
    pub width: Option<usize>,
    /// Whether to use the terminal's colours.
    pub colour: bool,
}

/// Renders an entry completely: `name  I0102 15:04:05.000000 file.rs:12] text`, times in UTC, `R` for raw ones. Every
/// line of the entry gets the prefix, so that each can be found on its own. No line break at the end.
pub fn full(entry: &Entry, style: Style) -> Full<'_> {
    Full { entry, style }
}

/// Renders an entry for a console: `short name I text`, with the name right-aligned in 20 columns (16 when the terminal
/// has fewer than 80 columns, none when it has fewer than 60). Further lines of the entry, and what does not fit the
/// width, continue behind `| `. No line break at the end.
pub fn concise(entry: &Entry, style: Style) -> Concise<'_> {
    Concise { entry, style }
}

/// See [`full`].
#[derive(Clone, Copy, Debug)]
pub struct Full<'a> {
    entry: &'a Entry,
    style: Style,
}

/// See [`concise`].
#[derive(Clone, Copy, Debug)]
pub struct Concise<'a> {
    entry: &'a Entry,
    style: Style,
}

impl fmt::Display for Full<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paint = Paint::of(self.entry, self.style);
        let name = sanitize(self.entry.name.as_str());
        let padding = FULL_NAME_COLUMNS.saturating_sub(name.width());
        for (at, line) in lines(self.entry).iter().enumerate() {
            if at > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{}{name}{}{:padding$} ", paint.name, paint.end, "")?;
            write!(formatter, "{}{}{}", paint.letter, letter(self.entry), paint.end)?;
            write!(formatter, "{} ", Stamp(self.entry.timestamp))?;
            if let Payload::Leveled(leveled) = &self.entry.payload {
                write!(formatter, "{}", sanitize(leveled.location.base_name()))?;
                if leveled.location.line > 0 {
                    write!(formatter, ":{}", leveled.location.line)?;
                }
                formatter.write_str("] ")?;
            }
            write!(formatter, "{}{line}{}", paint.text, paint.end)?;
        }
        Ok(())
    }
}

impl fmt::Display for Concise<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paint = Paint::of(self.entry, self.style);
        let columns = match self.style.width {
            None | Some(80..) => 20,
            Some(60..) => 16,
            Some(_) => 0,
        };
        let name = if columns > 0 { shorten(&self.entry.name, columns) } else { String::new() };
        // The name and the letter with a space behind each.
        let prefix = if columns > 0 { columns + 3 } else { 2 };
        let room = self.style.width.map(|width| width.saturating_sub(prefix).max(LEAST_TEXT_COLUMNS));
        let lines = lines(self.entry);
        let pieces = lines.iter().flat_map(|line| wrap(line, room));
        for (at, piece) in pieces.enumerate() {
            if at > 0 {
                formatter.write_str("\n")?;
            }
            let padding = columns.saturating_sub(if at == 0 { name.width() } else { 0 });
            match (columns, at) {
                (0, _) => {}
                (_, 0) => write!(formatter, "{:padding$}{}{name}{} ", "", paint.name, paint.end)?,
                (_, _) => write!(formatter, "{:padding$} ", "")?,
            }
            let mark = if at == 0 { letter(self.entry) } else { '|' };
            write!(formatter, "{}{mark}{} {}{piece}{}", paint.letter, paint.end, paint.text, paint.end)?;
        }
        Ok(())
    }
}

fn letter(entry: &Entry) -> char {
    entry.severity().map_or('R', Severity::letter)
}

/// The lines of an entry, safe for a terminal.
fn lines(entry: &Entry) -> Vec<String> {
    match &entry.payload {
        Payload::Leveled(leveled) => leveled.lines().map(|line| sanitize(line).into_owned()).collect(),
        Payload::Raw(raw) => {
            let mut line = sanitize(&raw.text()).into_owned();
            if raw.is_cut() {
                line.push_str("...");
            }
            vec![line]
        }
    }
}

/// Breaks a line into pieces of at most `room` columns, between words where it can.
fn wrap(line: &str, room: Option<usize>) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while let Some(room) = room
        && rest.width() > room
    {
        let mut used = 0;
        let fits = rest.char_indices().find(|(_, character)| {
            used += character.width().unwrap_or(0);
            used > room
        });
        let end = fits.map_or(rest.len(), |(at, _)| at).max(rest.chars().next().map_or(0, char::len_utf8));
        // A break that leaves only the indentation would make an empty piece; then the word itself is broken. The space
        // right behind what fits is a break too.
        let through = if rest[end..].starts_with(' ') { end } else { rest[..end].rfind(' ').unwrap_or(0) };
        let cut = if rest[..through].trim().is_empty() { end } else { through };
        pieces.push(rest[..cut].trim_end());
        rest = rest[cut..].trim_start();
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// Month and day, then the time of day with microseconds, as `0102 15:04:05.000000`, in UTC.
struct Stamp(Timestamp);

impl fmt::Display for Stamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = TimeZone::UTC.to_datetime(self.0);
        write!(formatter, "{:02}{:02} ", time.month(), time.day())?;
        write!(formatter, "{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second())?;
        write!(formatter, ".{:06}", time.subsec_nanosecond() / 1000)
    }
}

/// The escape sequences around the parts of a line; all empty without colour.
#[derive(Clone, Copy, Default)]
struct Paint {
    name: &'static str,
    letter: &'static str,
    text: &'static str,
    end: &'static str,
}

impl Paint {
    fn of(entry: &Entry, style: Style) -> Self {
        if !style.colour {
            return Self::default();
        }
        let (letter, text) = match entry.severity() {
            None => ("\x1b[36m", ""),
            Some(Severity::Info) => ("\x1b[32m", ""),
            Some(Severity::Warning) => ("\x1b[33m", "\x1b[33m"),
            Some(Severity::Error) => ("\x1b[31m", "\x1b[31m"),
            Some(Severity::Fatal) => ("\x1b[1;31m", "\x1b[1;31m"),
        };
        Self { name: "\x1b[2m", letter, text, end: "\x1b[0m" }
    }
}
