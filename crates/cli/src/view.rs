//! What the commands show: colour, tables, the three machine forms, and the views of a node.

mod paint;
mod parts;
mod printed;
mod progress;
mod safe;
mod status;
mod table;
mod yaml;

pub(crate) use paint::Paint;
pub(crate) use parts::{Fields, count};
#[cfg(test)]
pub(crate) use printed::tests::capture;
pub(crate) use printed::{print, print_value, print_whole};
pub(crate) use progress::Progress;
pub(crate) use safe::{safe, safe_json};
pub(crate) use status::{render_status, state_text};
pub(crate) use table::Table;
