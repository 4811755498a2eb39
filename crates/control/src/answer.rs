//! What a node answers in version 2 of the protocol.

use serde::{Deserialize, Serialize};

/// The answer to a request: what was asked for, or why not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// What was asked for.
    Answer(T),
    /// It was not done.
    Refusal(Refusal),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What did not work, and why.
    pub message: String,
    /// What to do next; absent when the message says it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

impl Refusal {
    /// Refuses with a message only.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_look_as_documented() {
        let answer = Answer::Answer(7);
        assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"answer":7}"#);
        let refusal = Answer::<u8>::Refusal(Refusal::new("no").hint("wait"));
        let text = serde_json::to_string(&refusal).unwrap();
        assert_eq!(text, r#"{"refusal":{"message":"no","hint":"wait"}}"#);
        assert_eq!(serde_json::from_str::<Answer<u8>>(&text).unwrap(), refusal);
    }
}
