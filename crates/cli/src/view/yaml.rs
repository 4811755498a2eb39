//! YAML for what JSON can say.
//!
//! An emitter of our own, because the need is small and the well-known crate for it, `serde_yaml`, is no longer maintained:
//! block style for maps and lists; strings that could be taken for anything else are quoted as in JSON, which YAML 1.2 reads
//! (section 1.3 of its specification); numbers, booleans and null are written as in JSON.

use std::fmt::Write as _;

use serde_json::Value;

use super::safe_json;

/// The value as a YAML document, ending with a line feed.
pub(crate) fn render(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_block(&mut text, value, 0, true),
        Value::Array(list) if !list.is_empty() => write_block(&mut text, value, 0, true),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            text.push_str(&scalar(value));
            text.push('\n');
        }
    }
    text
}

/// Writes a non-empty map or list. The first entry goes on the current line when `continued` says that its indentation is
/// there already.
fn write_block(text: &mut String, value: &Value, depth: usize, continued: bool) {
    let mut first = continued;
    let mut indent = |text: &mut String| {
        if !std::mem::take(&mut first) {
            let _ = write!(text, "{:depth$}", "");
        }
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                indent(text);
                let _ = write!(text, "{}:", string(key));
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        text.push('\n');
                        write_block(text, value, depth + 2, false);
                    }
                    Value::Array(inner) if !inner.is_empty() => {
                        text.push('\n');
                        write_block(text, value, depth, false);
                    }
                    Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::String(_)
                    | Value::Array(_)
                    | Value::Object(_) => {
                        let _ = writeln!(text, " {}", scalar(value));
                    }
                }
            }
        }
        Value::Array(list) => {
            for value in list {
                indent(text);
                text.push_str("- ");
                match value {
                    Value::Object(inner) if !inner.is_empty() => write_block(text, value, depth + 2, true),
                    Value::Array(inner) if !inner.is_empty() => write_block(text, value, depth + 2, true),
                    Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::String(_)
                    | Value::Array(_)
                    | Value::Object(_) => {
                        let _ = writeln!(text, "{}", scalar(value));
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => text.push_str(&scalar(value)),
    }
}

/// A value that fits on one line; an empty map or list is written as in JSON.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// A string, plain where no reader could take it for something else. A word that YAML 1.1 or 1.2 reads as a value of
/// another type, and everything with a character beyond letters, digits and a few signs, is quoted.
fn string(text: &str) -> String {
    const WORDS: [&str; 11] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"];
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "-_./".contains(character))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { safe_json(&Value::from(text).to_string()).into_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_are_blocks() {
        let value = json!({
            "state": "Running",
            "members": [{"id": "8e9e", "learner": false}, {"id": "x1", "tags": ["a", ["b", "c"]]}],
            "storage": {"security": "insecure", "empty": {}, "none": null},
            "conditions": [],
        });
        // serde_json orders keys by name.
        assert_eq!(
            render(&value),
            "\
conditions: []
members:
- id: \"8e9e\"
  learner: false
- id: x1
  tags:
  - a
  - - b
    - c
state: Running
storage:
  empty: {}
  none: null
  security: insecure
"
        );
    }

    #[test]
    fn strings_that_look_like_something_else_are_quoted() {
        for text in [
            "",
            "no",
            "NULL",
            "1",
            "0x1f",
            "1e3",
            "a: b",
            "- a",
            "#a",
            "a\nb",
            "127.0.0.1",
            " a",
            "ä",
            "2026-01-01",
            "~",
            "*a",
        ] {
            assert_eq!(render(&json!(text)), format!("{}\n", json!(text)), "{text:?}");
        }
        for text in ["Running", "metropolis-00ff", "cluster.internal", "a/b", "present_but_unused", "notable"] {
            assert_eq!(render(&json!(text)), format!("{text}\n"));
        }
    }

    #[test]
    fn scalars_and_empty_values_stand_alone() {
        assert_eq!(render(&json!([])), "[]\n");
        assert_eq!(render(&json!({})), "{}\n");
        assert_eq!(render(&json!(12)), "12\n");
        assert_eq!(render(&json!([1, true])), "- 1\n- true\n");
    }
}
