//! Conditions in the log: whoever reads it sees what is wrong, and when it was cured.

use std::collections::BTreeMap;

use polis_condition::{Condition, Severity};
use polis_supervisor::{Context, RunnableResult};

/// Logs each condition when it is raised, when what it says changes, and when it is cured: a runnable.
pub(crate) async fn keep(context: Context) -> RunnableResult {
    let mut conditions = context.conditions().watch();
    let mut known = BTreeMap::new();
    context.healthy();
    loop {
        let now = conditions.borrow_and_update().clone();
        for line in changes(&known, &now) {
            match line {
                Line::Raised(Condition { name, severity, message, hint, .. }) => match severity {
                    Severity::Info => tracing::info!("{name}: {message}; {hint}"),
                    Severity::Warning => tracing::warn!("{name}: {message}; {hint}"),
                    Severity::Error => tracing::error!("{name}: {message}; {hint}"),
                },
                Line::Cured(name) => tracing::info!("{name}: this is over"),
            }
        }
        known = now;
        context.unless_cancelled(conditions.changed()).await??;
    }
}

/// Something to log.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Raised(&'a Condition),
    Cured(&'a str),
}

fn changes<'a>(old: &'a BTreeMap<String, Condition>, new: &'a BTreeMap<String, Condition>) -> Vec<Line<'a>> {
    let raised = new.values().filter(|condition| old.get(&condition.name) != Some(condition)).map(Line::Raised);
    let cured = old.keys().filter(|name| !new.contains_key(*name)).map(|name| Line::Cured(name));
    raised.chain(cured).collect()
}

#[cfg(test)]
mod tests {
    use polis_condition::Conditions;

    use super::*;

    #[test]
    fn what_is_new_has_changed_or_is_over_is_logged_once() {
        let conditions = Conditions::default();
        let state = || conditions.watch().borrow().clone();
        conditions.raise("disk-full", Severity::Error, "no room", "make room");
        conditions.raise("storage-insecure", Severity::Warning, "not encrypted", "");
        let first = state();
        assert_eq!(changes(&BTreeMap::new(), &first).len(), 2);
        assert_eq!(changes(&first, &first), []);

        conditions.clear("disk-full");
        conditions.raise("storage-insecure", Severity::Warning, "still not encrypted", "");
        let second = state();
        let expect = [Line::Raised(&second["storage-insecure"]), Line::Cured("disk-full")];
        assert_eq!(changes(&first, &second), expect);
    }
}
