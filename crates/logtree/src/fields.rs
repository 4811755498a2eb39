//! Fields of events and spans as readable text: `message key=value other="two words"`.

use std::error::Error;
use std::fmt;
use std::fmt::Write as _;

use tracing::field::{Field, Visit};

/// Appends fields to a text.
pub(crate) struct FieldWriter<'a> {
    text: &'a mut String,
    /// Where the message goes if it does not come first; `None` when a field of that name is a field like any other.
    message_at: Option<usize>,
}

impl<'a> FieldWriter<'a> {
    /// For an event: the field `message` stands first and without its name, the others behind it.
    pub(crate) fn message_first(text: &'a mut String) -> Self {
        Self { message_at: Some(text.len()), text }
    }

    /// For a span: the text ends in its name, or in fields of it, and every field is put behind.
    pub(crate) fn after_name(text: &'a mut String) -> Self {
        Self { message_at: None, text }
    }

    fn field(&mut self, field: &Field, value: impl FnOnce(&mut String) -> fmt::Result) {
        if field.name() == "message"
            && let Some(at) = self.message_at
        {
            let behind = self.text.split_off(at);
            self.append(value);
            let message_bytes = self.text.trim_end_matches('\n').len();
            self.text.truncate(message_bytes);
            if !behind.is_empty() {
                self.text.push(' ');
                self.text.push_str(&behind);
            }
        } else {
            if self.message_at != Some(self.text.len()) {
                self.text.push(' ');
            }
            self.text.push_str(field.name());
            self.text.push('=');
            self.append(value);
        }
    }

    /// A value whose own formatting fails must not lose the rest of the entry.
    fn append(&mut self, value: impl FnOnce(&mut String) -> fmt::Result) {
        let before = self.text.len();
        if value(self.text).is_err() {
            self.text.truncate(before);
            self.text.push_str("<cannot be formatted>");
        }
    }
}

/// Appends `value`, in quotes when a reader could not tell where it ends.
pub(crate) fn write_text(text: &mut String, value: &str) -> fmt::Result {
    let plain =
        !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=');
    if plain {
        text.push_str(value);
        Ok(())
    } else {
        write!(text, "{value:?}")
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_message = self.message_at.is_some() && field.name() == "message";
        self.field(field, |text| {
            if is_message {
                text.push_str(value);
                Ok(())
            } else {
                write_text(text, value)
            }
        });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.field(field, |text| {
            write!(text, "{value}")?;
            let mut cause = value.source();
            while let Some(error) = cause {
                write!(text, ": {error}")?;
                cause = error.source();
            }
            Ok(())
        });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, |text| write!(text, "{value:?}"));
    }
}
