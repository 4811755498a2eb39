//! Entries as people read them, on a terminal or in a file.
//!
//! [`full`] is for files and wide terminals: one line per line of the entry, each complete in itself. [`concise`] is for
//! a narrow console: a short name in its own column, long texts wrapped. Both show control characters escaped, so that
//! the output of a child process cannot move the cursor, change colours or retitle the terminal.

mod render;
mod sanitize;
mod shorten;

pub use render::{Concise, Full, Style, concise, full};
pub use sanitize::sanitize;
pub use shorten::shorten;
