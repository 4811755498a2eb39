//! How text that somebody sent, and what the wire calls things, is shown in a message.

use polis_proto::common::NodeState;

/// Longest text of others that is repeated in a message, in characters: enough to recognise it.
const MAX_SHOWN: usize = 80;

/// `text` with control characters escaped, cut to a length that can be shown.
pub(super) fn shown(text: &str) -> String {
    // Escaping makes text longer at most, so the first characters are enough.
    let start: String = text.chars().take(MAX_SHOWN + 1).collect();
    let escaped: String = start.escape_debug().collect();
    if escaped.chars().count() <= MAX_SHOWN {
        return escaped;
    }
    escaped.chars().take(MAX_SHOWN).chain("...".chars()).collect()
}

/// The state as people know it, such as `UP`.
pub(super) fn state_name(state: NodeState) -> &'static str {
    let name = state.as_str_name();
    name.strip_prefix("NODE_STATE_").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_short_names() {
        assert_eq!((state_name(NodeState::Up), state_name(NodeState::Standby)), ("UP", "STANDBY"));
    }

    #[test]
    fn text_is_escaped_and_cut() {
        assert_eq!(shown("a=b"), "a=b");
        assert_eq!(shown("\u{1b}[2J"), "\\u{1b}[2J");
        assert_eq!(shown(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(shown(&"x".repeat(5000)), format!("{}...", "x".repeat(80)));
    }
}
