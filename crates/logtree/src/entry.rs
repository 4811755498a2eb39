//! One entry of a journal, leveled or raw.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::DistinguishedName;

/// Longest text of a leveled entry in bytes; longer ones are cut and say so. Stack traces and printed configurations
/// fit, a dumped buffer does not.
pub const LEVELED_BYTES: usize = 16 << 10;

/// Longest line of a raw entry in bytes (metropolis.md B.1); of longer ones the beginning and the length are kept.
pub const RAW_LINE_BYTES: usize = 1024;

/// How bad what a leveled entry says is. `Fatal` ends nothing by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Ordinary progress.
    Info,
    /// Something is not as it should be; work goes on.
    Warning,
    /// Something failed.
    Error,
    /// Something failed that ends the part that says it.
    Fatal,
}

impl Severity {
    /// The letter that stands for it in rendered entries: `I`, `W`, `E` or `F`.
    pub fn letter(self) -> char {
        match self {
            Self::Info => 'I',
            Self::Warning => 'W',
            Self::Error => 'E',
            Self::Fatal => 'F',
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        })
    }
}

/// Where in some source code a leveled entry was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The source file as its compiler or writer names it; `unknown` when nobody said.
    pub file: Cow<'static, str>,
    /// The line in it, from 1; 0 when nobody said.
    pub line: u32,
}

/// Why a text is no [`Location`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place in a source file; it should be a file name, a colon and a line number")]
pub struct ParseLocationError(String);

impl Location {
    /// The location of an entry whose writer did not say.
    pub const UNKNOWN: Self = Self { file: Cow::Borrowed("unknown"), line: 0 };

    /// The file name without the directories above it.
    pub fn base_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

impl FromStr for Location {
    type Err = ParseLocationError;

    fn from_str(text: &str) -> Result<Self, ParseLocationError> {
        text.rsplit_once(':')
            .filter(|(file, _)| !file.is_empty())
            .and_then(|(file, line)| Some(Self { file: Cow::Owned(file.into()), line: line.parse().ok()? }))
            .ok_or_else(|| ParseLocationError(text.into()))
    }
}

impl From<&'static std::panic::Location<'static>> for Location {
    fn from(location: &'static std::panic::Location<'static>) -> Self {
        Self { file: Cow::Borrowed(location.file()), line: location.line() }
    }
}

/// What a leveled entry says besides its name and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leveled {
    /// How bad it is.
    pub severity: Severity,
    /// Where it was written.
    pub location: Location,
    text: Box<str>,
}

impl Leveled {
    /// Line breaks around `text` are removed; the ones inside separate the lines of the entry. A text of more than
    /// [`LEVELED_BYTES`] is cut, and its last line then says how long it was.
    pub fn new(severity: Severity, location: Location, text: &str) -> Self {
        let trimmed = text.trim_matches(['\n', '\r']);
        let text = if trimmed.len() <= LEVELED_BYTES {
            trimmed.into()
        } else {
            let end = (0..=LEVELED_BYTES).rev().find(|at| trimmed.is_char_boundary(*at)).unwrap_or(0);
            let kept = &trimmed[..end];
            format!("{kept}\n[cut after {} of {} bytes]", kept.len(), trimmed.len()).into()
        };
        Self { severity, location, text }
    }

    /// The whole text, lines joined by `\n`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The lines, at least one.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line))
    }
}

/// What a raw entry holds: one line as another program wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    data: Box<[u8]>,
    original_length: usize,
}

impl Raw {
    /// Keeps the first [`RAW_LINE_BYTES`] of `line`; `original_length` is its length in bytes before anybody cut it, and
    /// counts as at least the length of `line`.
    pub fn new(line: &[u8], original_length: usize) -> Self {
        let original_length = original_length.max(line.len());
        let cut = original_length > line.len() || line.len() > RAW_LINE_BYTES;
        let mut data = &line[..line.len().min(RAW_LINE_BYTES)];
        if cut {
            data = &data[..data.len() - split_character_bytes(data)];
        }
        Self { data: data.into(), original_length }
    }

    /// The bytes of the line that were kept, without the line break.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The line as text; each run of bytes that is no UTF-8 is replaced by `<INVALID>` (metropolis.md J.2).
    pub fn text(&self) -> Cow<'_, str> {
        match str::from_utf8(&self.data) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(replace_invalid(&self.data)),
        }
    }

    /// The length of the line in bytes before it was cut; the length of `data` when it was not.
    pub fn original_length(&self) -> usize {
        self.original_length
    }

    /// Whether the end of the line is missing.
    pub fn is_cut(&self) -> bool {
        self.original_length > self.data.len()
    }
}

/// How many bytes at the end of `data` are the beginning of a character whose rest was cut off.
fn split_character_bytes(data: &[u8]) -> usize {
    // A character has at most four bytes, so only the last three can be a beginning.
    let tail = data.iter().rev().take(3).position(|byte| byte & 0b1100_0000 != 0b1000_0000).map_or(0, |at| at + 1);
    match str::from_utf8(&data[data.len() - tail..]) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => tail,
        Ok(_) | Err(_) => 0,
    }
}

fn replace_invalid(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len() + 16);
    let mut in_run = false;
    for chunk in data.utf8_chunks() {
        if !chunk.valid().is_empty() {
            text.push_str(chunk.valid());
            in_run = false;
        }
        if !chunk.invalid().is_empty() && !in_run {
            text.push_str("<INVALID>");
            in_run = true;
        }
    }
    text
}

/// The two kinds of entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Written by code that says how bad it is and where it comes from.
    Leveled(Leveled),
    /// A line of another program.
    Raw(Raw),
}

/// One entry of the tree. It never changes once written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name it was written under.
    pub name: DistinguishedName,
    /// When it was written by the node's own clock or, if it was read from another program, when that program says.
    /// The order of the tree is that of writing and may differ.
    pub timestamp: Timestamp,
    /// What it says.
    pub payload: Payload,
}

/// What an entry takes besides its own fields: two reference counts, its slot in a journal, and what the allocator adds
/// to the two or three pieces of memory.
const OVERHEAD_BYTES: usize = 16 + 24 + 48;

impl Entry {
    /// The severity; `None` for a raw entry.
    pub fn severity(&self) -> Option<Severity> {
        match &self.payload {
            Payload::Leveled(leveled) => Some(leveled.severity),
            Payload::Raw(_) => None,
        }
    }

    /// The text of either kind, lines joined by `\n`; what is no UTF-8 is replaced as in [`Raw::text`].
    pub fn text(&self) -> Cow<'_, str> {
        match &self.payload {
            Payload::Leveled(leveled) => Cow::Borrowed(leveled.text()),
            Payload::Raw(raw) => raw.text(),
        }
    }

    /// The memory the entry takes, in bytes, as it counts against the bounds; close to the truth, not exact.
    pub fn memory_bytes(&self) -> usize {
        let variable = match &self.payload {
            Payload::Leveled(Leveled { text, location: Location { file: Cow::Owned(file), .. }, .. }) => {
                text.len() + file.capacity()
            }
            Payload::Leveled(Leveled { text, .. }) => text.len(),
            Payload::Raw(raw) => raw.data.len(),
        };
        size_of::<Self>() + OVERHEAD_BYTES + variable
    }
}
