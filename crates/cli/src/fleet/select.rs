//! Which node is meant.
//!
//! A node may be named by the first digits of its id. For a question the whole answer shows which one it was; before a
//! change the one that was found is printed (see [`Chosen`]).

use polis_identity::NodeId;

use super::NodeDocument;
use crate::failure::Failure;
use crate::view::count;

/// What every node id begins with.
const PREFIX: &str = "metropolis-";

/// Most nodes that a message lists.
const MAX_LISTED: usize = 5;

/// A node that somebody named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen<'a> {
    pub(crate) node: &'a NodeDocument,
    /// Whether it was named by a part of its id, so that it must be shown before it is changed.
    pub(crate) abbreviated: bool,
}

/// Finds the one node that `text` names: its whole id, or first digits that no other id has.
///
/// # Errors
///
/// When there is none, or there are several.
pub(crate) fn choose<'a>(nodes: &'a [NodeDocument], text: &str) -> Result<Chosen<'a>, Failure> {
    if let Some(node) = nodes.iter().find(|node| node.node_id == text) {
        return Ok(Chosen { node, abbreviated: false });
    }
    let digits = text.strip_prefix(PREFIX).unwrap_or(text);
    if digits.is_empty() || !digits.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')) {
        return Err(Failure::usage(format!("{text:?} is no node id"))
            .because_of("a node id is metropolis- and 32 digits of 0-9 and a-f; its first digits will do")
            .hint("see the ids: polis node list"));
    }
    let found: Vec<&NodeDocument> = nodes
        .iter()
        .filter(|node| node.node_id.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(digits)))
        .collect();
    match &found[..] {
        [node] => Ok(Chosen { node, abbreviated: true }),
        [] => {
            let what = if text.parse::<NodeId>().is_ok() { "there is no node" } else { "no node id begins with" };
            Err(Failure::failed(format!("{what} {text}"))
                .because_of(format!("the cluster knows {}", count(nodes.len(), "node")))
                .hint("see the ids: polis node list"))
        }
        several => {
            let mut failure =
                Failure::usage(format!("{text} may be any of {}; nothing was done", count(several.len(), "node")));
            for node in several.iter().take(MAX_LISTED) {
                failure = failure.because_of(format!("{} is {}", node.node_id, node.state));
            }
            Err(failure.hint("give more of its digits"))
        }
    }
}

/// As [`choose`], for several; one that is named twice is chosen once.
///
/// # Errors
///
/// When one of them is not there, or may be several.
pub(crate) fn choose_all<'a>(nodes: &'a [NodeDocument], texts: &[String]) -> Result<Vec<Chosen<'a>>, Failure> {
    let mut chosen: Vec<Chosen<'a>> = Vec::new();
    for text in texts {
        let next = choose(nodes, text)?;
        if chosen.iter().all(|known| known.node.node_id != next.node.node_id) {
            chosen.push(next);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<NodeDocument> {
        let node = |digits: &str| NodeDocument {
            node_id: format!("{PREFIX}{digits}{}", "0".repeat(32 - digits.len())),
            state: "UP".into(),
            ..NodeDocument::default()
        };
        vec![node("ab1"), node("ab2"), node("c")]
    }

    #[test]
    fn the_whole_id_or_digits_that_fit_one() {
        let nodes = nodes();
        let whole = &nodes[0].node_id;
        let check = |text: &str, index: usize, abbreviated| {
            let chosen = choose(&nodes, text).unwrap();
            assert_eq!((&chosen.node.node_id, chosen.abbreviated), (&nodes[index].node_id, abbreviated), "{text}");
        };
        check(whole, 0, false);
        check("ab2", 1, true);
        check("metropolis-c", 2, true);
        check("c", 2, true);
        let texts = [whole.clone(), "ab1".into(), "c".into()];
        assert_eq!(choose_all(&nodes, &texts).unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_refused() {
        let nodes = nodes();
        let check = |text: &str, parts: &[&str]| {
            let failure = format!("{:?}", choose(&nodes, text).unwrap_err());
            for part in parts {
                assert!(failure.contains(part), "{text}: {part:?} is missing in {failure}");
            }
        };
        check("ab", &["may be any of 2 nodes; nothing was done", &nodes[0].node_id, &nodes[1].node_id]);
        check("metropolis-", &["is no node id"]);
        check("", &["is no node id"]);
        check("AB1", &["is no node id"]);
        check("metropolis", &["is no node id"]);
        check("dd", &["no node id begins with dd", "3 nodes"]);
        check(&format!("metropolis-{}", "d".repeat(32)), &["there is no node metropolis-d"]);
    }
}
