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
    match write(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(&error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes `text`, of which nothing may get lost, to the standard output.
///
/// # Errors
///
/// When it cannot be written, and when nobody reads it.
pub(crate) fn print_whole(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| unwritten(&error))
}

fn write(text: &str) -> io::Result<()> {
    #[cfg(test)]
    if tests::keep(text) {
        return Ok(());
    }
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush())
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::failed("the result could not be written to the standard output").because(error)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    thread_local! {
        static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// Keeps what this thread prints meanwhile.
    pub(crate) fn capture<T>(work: impl FnOnce() -> T) -> (T, String) {
        KEPT.set(Some(String::new()));
        let result = work();
        (result, KEPT.take().unwrap_or_default())
    }

    /// Whether the text was kept and is not to be written.
    pub(super) fn keep(text: &str) -> bool {
        KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.push_str(text)).is_some())
    }
}
