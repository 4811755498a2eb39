//! How often each runnable has died, over the whole life of the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use polis_logtree::DistinguishedName;
use polis_supervisor::{MAX_RUNNABLES, Metrics, State, Transition};

/// Counts deaths: what the supervisor itself tells begins anew with each life of a parent. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deaths(Arc<Mutex<BTreeMap<DistinguishedName, u64>>>);

impl Deaths {
    /// The counts now. Who has never died is not there.
    pub(crate) fn counts(&self) -> BTreeMap<DistinguishedName, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Metrics for Deaths {
    fn transition(&self, transition: &Transition) {
        if transition.to != State::Dead {
            return;
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Names come from code; the bound keeps one that makes them up from growing without end.
        if counts.len() < MAX_RUNNABLES || counts.contains_key(&transition.distinguished_name) {
            *counts.entry(transition.distinguished_name.clone()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deaths_count() {
        let deaths = Deaths::default();
        let name = |text| DistinguishedName::parse(text).unwrap();
        for (who, to) in
            [("root.a", State::New), ("root.a", State::Dead), ("root.b", State::Canceled), ("root.a", State::Dead)]
        {
            deaths.transition(&Transition { distinguished_name: name(who), from: None, to });
        }
        assert_eq!(deaths.counts(), BTreeMap::from([(name("root.a"), 2)]));
    }
}
