//! The standard output.

use std::io::{self, Write as _};

use serde::Serialize;

use super::{safe, safe_json, yaml};
use crate::arguments::OutputFormat;
use crate::failure::Failure;

/// Writes `text` to the standard output.
///
/// # Errors
///
/// When it cannot be written. A reader that has seen enough, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("the result could not be written to the standard output").because(&error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes `value` in a machine form, or what `table` makes (told whether everything is wanted) in one for people.
///
/// # Errors
///
/// When it cannot be written.
pub(crate) fn print_value<T: Serialize>(
    format: OutputFormat,
    value: &T,
    table: impl FnOnce(bool) -> String,
) -> Result<(), Failure> {
    let json =
        || serde_json::to_value(value).map_err(|error| Failure::failed("the result has no JSON form").because(&error));
    match format {
        OutputFormat::Table => print(&safe(&table(false))),
        OutputFormat::Wide => print(&safe(&table(true))),
        OutputFormat::Json => print(&safe_json(&format!("{:#}\n", json()?))),
        OutputFormat::Yaml => print(&yaml::render(&json()?)),
    }
}
