//! Conditions: what is not as it should be on this node, in words that an operator can act on.
//!
//! A condition has a stable name, says what is wrong and since when, and what would cure it. It is a level, not an
//! event: raised while the fault lasts, cleared when it is gone. Workers raise and clear their own by name and know
//! nothing of each other; `polis node status` shows all of them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; everything works.
    Info,
    /// Works, but with less safety or comfort than it should.
    Warning,
    /// Something does not work until this is cured.
    Error,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Stable name in kebab case, unique on the node, for example `consensus-port-taken`.
    pub name: String,
    /// How bad it is.
    pub severity: Severity,
    /// When it was first raised, by the node's own clock; raising it again keeps this.
    pub since: Timestamp,
    /// What is wrong, where and why.
    pub message: String,
    /// What would cure it; empty when nothing needs to be done.
    pub hint: String,
}

/// All conditions of a node. Clones share the same set.
#[derive(Clone, Debug)]
pub struct Conditions(watch::Sender<BTreeMap<String, Condition>>);

/// Most conditions that are held at a time. Names come from code and from runnables' names, so a sound node has a
/// handful; the bound keeps a faulty one from growing without end. Past it new ones are dropped, old ones stay.
pub const MAX_CONDITIONS: usize = 256;

impl Default for Conditions {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl Conditions {
    /// Raises the condition `name`, or updates its severity, message and hint. Watchers wake only on a change.
    pub fn raise(&self, name: &str, severity: Severity, message: impl Into<String>, hint: impl Into<String>) {
        let (message, hint) = (message.into(), hint.into());
        self.0.send_if_modified(|all| {
            if let Some(known) = all.get_mut(name) {
                let changed = known.severity != severity || known.message != message || known.hint != hint;
                (known.severity, known.message, known.hint) = (severity, message, hint);
                changed
            } else if all.len() < MAX_CONDITIONS {
                let condition = Condition { name: name.into(), severity, since: Timestamp::now(), message, hint };
                all.insert(name.into(), condition);
                true
            } else {
                false
            }
        });
    }

    /// Clears the condition `name`; nothing happens when it was not raised.
    pub fn clear(&self, name: &str) {
        self.0.send_if_modified(|all| all.remove(name).is_some());
    }

    /// All conditions now, ordered by name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Condition> {
        self.0.borrow().values().cloned().collect()
    }

    /// The condition `name`, if it is raised.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Condition> {
        self.0.borrow().get(name).cloned()
    }

    /// A receiver that wakes on every change of the set.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<BTreeMap<String, Condition>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_again_keeps_the_first_time_and_wakes_only_on_change() {
        let conditions = Conditions::default();
        let mut watch = conditions.watch();
        conditions.raise("disk-full", Severity::Error, "no space", "make room");
        let first = conditions.get("disk-full").unwrap();
        assert!(watch.has_changed().unwrap());
        watch.mark_unchanged();

        conditions.raise("disk-full", Severity::Error, "no space", "make room");
        assert!(!watch.has_changed().unwrap());

        conditions.raise("disk-full", Severity::Error, "still no space", "make room");
        assert!(watch.has_changed().unwrap());
        assert_eq!(conditions.get("disk-full").unwrap().since, first.since);
        assert_eq!(conditions.get("disk-full").unwrap().message, "still no space");
    }

    #[test]
    fn clearing_removes_only_the_named_one() {
        let conditions = Conditions::default();
        conditions.raise("a", Severity::Info, "", "");
        conditions.raise("b", Severity::Warning, "", "");
        conditions.clear("a");
        conditions.clear("never-raised");
        assert_eq!(conditions.snapshot().iter().map(|condition| &*condition.name).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn the_set_is_bounded() {
        let conditions = Conditions::default();
        for number in 0..=MAX_CONDITIONS {
            conditions.raise(&format!("condition-{number:04}"), Severity::Info, "", "");
        }
        assert_eq!(conditions.snapshot().len(), MAX_CONDITIONS);
        assert_eq!(conditions.get(&format!("condition-{MAX_CONDITIONS:04}")), None);
    }
}
