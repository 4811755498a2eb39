//! Places in the network that members came from last.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::room::Holder;

/// Most places that are remembered: more than a cluster has nodes and operators.
const MAX_PLACES: usize = 4_096;

/// Places in the network that members came from last. Only who has proved to be a member gets a place in here.
#[derive(Default)]
pub(super) struct Familiar(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// With the order in which they were used.
    last_used: HashMap<Holder, u64>,
    next: u64,
}

impl Familiar {
    /// A member came from here.
    pub(super) fn note(&self, place: Holder) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.next += 1;
        let now = places.next;
        places.last_used.insert(place, now);
        if places.last_used.len() > MAX_PLACES {
            places.forget();
        }
    }

    /// Whether a member came from here.
    pub(super) fn contains(&self, place: Holder) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_used.contains_key(&place)
    }
}

impl Places {
    /// Forgets the half that was not used for longest.
    fn forget(&mut self) {
        let mut used: Vec<u64> = self.last_used.values().copied().collect();
        let middle = used.len() / 2;
        let (_, middle, _) = used.select_nth_unstable(middle);
        let middle = *middle;
        self.last_used.retain(|_, used| *used >= middle);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn those_that_were_used_last_are_remembered() {
        let place = |number: usize| Holder::at(Ipv4Addr::from(u32::try_from(number).unwrap()).into());
        let familiar = Familiar::default();
        for number in 0..MAX_PLACES {
            familiar.note(place(number));
        }
        // The first is used again before there are too many.
        familiar.note(place(0));
        familiar.note(place(MAX_PLACES));
        let is_remembered = |number| familiar.contains(place(number));
        assert!(is_remembered(0) && is_remembered(MAX_PLACES) && is_remembered(MAX_PLACES - 1));
        assert!(!is_remembered(1) && !is_remembered(MAX_PLACES + 1));
        for number in 0..10 * MAX_PLACES {
            familiar.note(place(number));
        }
        assert!(familiar.0.lock().unwrap().last_used.len() <= MAX_PLACES);
    }
}
