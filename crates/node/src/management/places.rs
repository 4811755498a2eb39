//! Places for those who read the log, which a reader that has stopped reading loses to one that wants to begin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A bounded number of places for `T`. Clones share them.
pub(super) struct Places<T> {
    limit: usize,
    stalled_after: Duration,
    taken: Arc<Mutex<Vec<Weak<Place<T>>>>>,
}

/// One place. Dropping it gives it back.
pub(super) struct Place<T>(Mutex<Holder<T>>);

/// Who has a place.
pub(super) struct Holder<T> {
    /// What the place is for; `None` once it was taken away.
    pub(super) inside: Option<T>,
    /// Since when something lies ready that nobody takes; `None` while the holder waits for something to come.
    pub(super) ready_since: Option<Instant>,
}

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        Self { limit: self.limit, stalled_after: self.stalled_after, taken: Arc::clone(&self.taken) }
    }
}

impl<T> Places<T> {
    /// `limit` places. One whose holder has not taken what lies ready for `stalled_after` is given to the next who wants one.
    pub(super) fn new(limit: usize, stalled_after: Duration) -> Self {
        Self { limit, stalled_after, taken: Arc::default() }
    }

    /// A place for what `make` makes; none when all are taken by holders that go on.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub(super) fn take<E>(
        &self,
        now: Instant,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<Arc<Place<T>>>, E> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|place| place.upgrade().is_some_and(|place| place.lock().inside.is_some()));
        if taken.len() >= self.limit {
            let stalled = taken.iter().filter_map(Weak::upgrade).filter_map(|place| {
                let since = place.lock().ready_since?;
                (now.saturating_duration_since(since) >= self.stalled_after).then_some((since, place))
            });
            let Some((_, place)) = stalled.min_by_key(|(since, _)| *since) else { return Ok(None) };
            // Dropped here and not when the holder goes on, which may be never.
            place.lock().inside = None;
            taken.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(&place)));
        }
        let place = Arc::new(Place(Mutex::new(Holder { inside: Some(make()?), ready_since: None })));
        taken.push(Arc::downgrade(&place));
        Ok(Some(place))
    }
}

impl<T> Place<T> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Holder<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn only_those_who_stopped_reading_lose_their_place() {
        let (places, now) = (Places::new(2, Duration::from_secs(10)), Instant::now());
        let take =
            |number: u32, now| places.take(now, || Ok::<_, Infallible>(number)).unwrap_or_else(|never| match never {});
        let first = take(1, now).unwrap();
        let second = take(2, now).unwrap();
        // Both wait for something to come, however long.
        assert!(take(3, now + Duration::from_secs(1000)).is_none());
        (first.lock().ready_since, second.lock().ready_since) = (Some(now + Duration::from_secs(1)), Some(now));
        assert!(take(3, now + Duration::from_secs(9)).is_none());
        // The one that has been still for longest goes first.
        let third = take(3, now + Duration::from_secs(20)).unwrap();
        assert_eq!((first.lock().inside, second.lock().inside, third.lock().inside), (Some(1), None, Some(3)));
        drop(third);
        let _fourth = take(4, now).unwrap();
        assert_eq!(first.lock().inside, Some(1));
    }
}
