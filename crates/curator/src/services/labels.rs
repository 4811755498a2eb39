//! Changes of a node's labels, decided without I/O (metropolis.md, G.4 and G.5).

use std::collections::BTreeSet;

use polis_parameters::{Label, LabelError, Labels, MAX_LABELS};

use super::text::shown;

/// A change of labels that is valid by itself: what is left to find out is whether the node then has too many.
#[derive(Debug)]
pub(super) struct LabelChange {
    upsert: Vec<Label>,
    delete: BTreeSet<String>,
}

/// Why labels are not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LabelChangeError {
    /// A label to set is malformed, or there twice.
    #[error("the label {label} cannot be set: {error}")]
    Upsert { label: String, error: LabelError },
    /// A key to take away is malformed, or there twice.
    #[error("the label with the key {key} cannot be taken away: {error}")]
    Delete { key: String, error: LabelError },
    /// The same key is to be set and to be taken away.
    #[error("the label with the key {key} is to be set and to be taken away")]
    Both { key: String },
    /// More labels than a node can have.
    #[error("the node would have more than {MAX_LABELS} labels; take some away first")]
    TooMany,
}

impl LabelChange {
    /// Checks what `upsert` and `delete` of a request say, each key and value, in their order.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub(super) fn new<'a>(
        upsert: impl IntoIterator<Item = (&'a str, &'a str)>,
        delete: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, LabelChangeError> {
        let mut change = Self { upsert: Vec::new(), delete: BTreeSet::new() };
        for (key, value) in upsert {
            let label = Label::new(key, value).and_then(|label| {
                let known = change.upsert.iter().any(|known| known.key() == key);
                if known { Err(LabelError::Duplicate) } else { Ok(label) }
            });
            let refused = |error| LabelChangeError::Upsert { label: shown(&format!("{key}={value}")), error };
            let label = label.map_err(refused)?;
            if change.upsert.len() == MAX_LABELS {
                return Err(LabelChangeError::TooMany);
            }
            change.upsert.push(label);
        }
        for key in delete {
            let refused = |error| LabelChangeError::Delete { key: shown(key), error };
            Label::new(key, "").map_err(refused)?;
            // No node has more, so the rest could only be passed over.
            if change.delete.len() == MAX_LABELS {
                return Err(refused(LabelError::TooMany));
            }
            if !change.delete.insert(key.to_owned()) {
                return Err(refused(LabelError::Duplicate));
            }
            if change.upsert.iter().any(|label| label.key() == key) {
                return Err(LabelChangeError::Both { key: shown(key) });
            }
        }
        Ok(change)
    }

    /// The labels of a node after the change. Those that stay keep their place.
    ///
    /// # Errors
    ///
    /// [`LabelChangeError::TooMany`], and nothing else.
    pub(super) fn apply(&self, labels: &Labels) -> Result<Labels, LabelChangeError> {
        let mut changed = Labels::default();
        let kept = labels.iter().filter(|label| !self.delete.contains(label.key()));
        let kept = kept.map(|label| self.upsert.iter().find(|new| new.key() == label.key()).unwrap_or(label));
        let new = self.upsert.iter().filter(|new| labels.iter().all(|label| label.key() != new.key()));
        for label in kept.chain(new) {
            changed.push(label.clone()).map_err(|_| LabelChangeError::TooMany)?;
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn labels(pairs: Pairs<'_>) -> Labels {
        let mut labels = Labels::default();
        for (key, value) in pairs {
            labels.push(Label::new(key, value).unwrap()).unwrap();
        }
        labels
    }

    fn check(before: Pairs<'_>, upsert: Pairs<'_>, delete: &[&str], expect: Result<Pairs<'_>, LabelChangeError>) {
        let change = LabelChange::new(upsert.iter().copied(), delete.iter().copied());
        let found = change.and_then(|change| change.apply(&labels(before)));
        assert_eq!(found, expect.map(labels), "{before:?} + {upsert:?} - {delete:?}");
    }

    #[test]
    fn labels_are_set_and_taken_away() {
        check(&[], &[], &[], Ok(&[]));
        check(&[], &[("a", "1"), ("b", "")], &[], Ok(&[("a", "1"), ("b", "")]));
        check(&[("a", "1"), ("b", "2")], &[("a", "3")], &[], Ok(&[("a", "3"), ("b", "2")]));
        check(&[("a", "1"), ("b", "2")], &[("c", "3")], &["a"], Ok(&[("b", "2"), ("c", "3")]));
        check(&[("a", "1")], &[], &["gone", "example.com/x"], Ok(&[("a", "1")]));
    }

    #[test]
    fn what_is_wrong_with_a_request_is_named() {
        let upsert = |label: &str, error| Err(LabelChangeError::Upsert { label: label.into(), error });
        let delete = |key: &str, error| Err(LabelChangeError::Delete { key: key.into(), error });
        check(&[], &[("-a", "1")], &[], upsert("-a=1", LabelError::Key));
        check(&[], &[("a", "1 2")], &[], upsert("a=1 2", LabelError::Value));
        check(&[], &[("UP/a", "1")], &[], upsert("UP/a=1", LabelError::Prefix));
        check(&[], &[("a", "1"), ("a", "1")], &[], upsert("a=1", LabelError::Duplicate));
        check(&[], &[], &["b", "b"], delete("b", LabelError::Duplicate));
        check(&[], &[], &["\u{7}"], delete("\\u{7}", LabelError::Key));
        check(&[], &[("a", "1")], &["a"], Err(LabelChangeError::Both { key: "a".into() }));
    }

    #[test]
    fn a_node_has_at_most_128_labels() {
        let keys: Vec<String> = (0..=MAX_LABELS).map(|number| format!("k{number}")).collect();
        let all: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, "v")).collect();
        let full = &all[..MAX_LABELS];
        check(&[], full, &[], Ok(full));
        check(&[], &all, &[], Err(LabelChangeError::TooMany));
        check(full, &all[MAX_LABELS..], &[], Err(LabelChangeError::TooMany));
        let mut replaced = full.to_vec();
        replaced[0].1 = "w";
        replaced.remove(1);
        check(full, &[("k0", "w")], &["k1"], Ok(&replaced));
        let many: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let error = LabelChange::new([], many.iter().copied()).unwrap_err();
        assert_eq!(error, LabelChangeError::Delete { key: "k128".into(), error: LabelError::TooMany });
    }
}
