//! The file of `polis node report`: one redacted bundle that can be sent to somebody.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::redact::redact;
use crate::{Report, Status};

/// Numbers in a JSON list from which on it is taken for a key.
const LISTED_BYTES: usize = 16;

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    /// Always [`Bundle::FORMAT`].
    pub format: String,
    /// Version of the form; this code writes [`Bundle::VERSION`].
    pub version: u32,
    /// When it was made.
    pub made: Timestamp,
    /// Version of the `polis` that made it.
    pub polis_version: String,
    /// Root directory of the node.
    pub root: String,
    /// Whether the node runs.
    pub running: bool,
    /// What the node says; absent when it does not run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub report: Option<Report>,
    /// What it wrote down last; absent when there is nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_state: Option<Status>,
    /// Files below the root: names and sizes, no content.
    pub files: Vec<FileEntry>,
    /// What could not be found out, and why.
    pub problems: Vec<String>,
}

/// One file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the root.
    pub path: String,
    /// `file`, `directory` or `other`.
    pub kind: String,
    /// Bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Permission bits, in octal digits.
    pub mode: String,
    /// When it was last written, by the clock of the machine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modified: Option<Timestamp>,
}

impl Bundle {
    /// What every bundle says it is.
    pub const FORMAT: &str = "polis-node-report";
    /// Version of the form that this code writes.
    pub const VERSION: u32 = 1;

    /// The text of the file. Everything that could be a secret has been taken out of it; there is no other way to write one.
    ///
    /// # Errors
    ///
    /// When it has no JSON form, which does not happen.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(self)?;
        redact_value(&mut value);
        serde_json::to_string_pretty(&value).map(|text| text + "\n")
    }
}

fn redact_value(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let std::borrow::Cow::Owned(redacted) = redact(text) {
                *text = redacted;
            }
        }
        Value::Array(values) => {
            let bytes = values.len() >= LISTED_BYTES
                && values.iter().all(|value| value.as_u64().is_some_and(|number| number <= u64::from(u8::MAX)));
            if bytes {
                *value = Value::String("<redacted: list of bytes>".into());
            } else {
                values.iter_mut().for_each(redact_value);
            }
        }
        Value::Object(fields) => {
            // Names of fields come from code, except where a map has names as keys.
            let names: Vec<String> = fields.keys().filter(|name| redact(name) != **name).cloned().collect();
            for name in names {
                if let Some(value) = fields.remove(&name) {
                    fields.insert(redact(&name).into_owned(), value);
                }
            }
            fields.values_mut().for_each(redact_value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_no_secret_in_any_place() {
        let secret: Vec<u8> = (100..132).collect();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{secret:?}");
        let mut bundle = Bundle {
            format: Bundle::FORMAT.into(),
            version: Bundle::VERSION,
            made: Timestamp::UNIX_EPOCH,
            polis_version: "0".into(),
            root: format!("/srv/{hex}"),
            running: false,
            report: None,
            last_state: None,
            files: vec![],
            problems: vec![format!("it said {list}"), hex.clone()],
        };
        let text = bundle.to_json().unwrap();
        assert!(!text.contains(&hex) && !text.contains(&list), "{text}");
        bundle.problems.clear();
        bundle.root = "/srv".into();
        assert_eq!(serde_json::from_str::<Bundle>(&bundle.to_json().unwrap()).unwrap(), bundle);
    }

    #[test]
    fn lists_of_numbers_and_names_of_fields_are_looked_at_too() {
        let numbers: Vec<u8> = (0..32).collect();
        let mut value = serde_json::json!({ "list": numbers, "ab".repeat(32): { "small": [1, 2, 3] } });
        redact_value(&mut value);
        let expect = serde_json::json!({
            "list": "<redacted: list of bytes>",
            "<redacted: hexadecimal digits>": { "small": [1, 2, 3] },
        });
        assert_eq!(value, expect);
    }
}
