//! Seats that a connection takes and gives back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::room::{Holder, Rank, Room, RoomLimits};

/// A room that connections share. Each guest is the token by which it hears that its seat was taken away.
pub(super) struct Seats(Mutex<Room<CancellationToken>>);

impl Seats {
    pub(super) fn new(limits: RoomLimits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Room::new(limits))))
    }

    /// Takes a seat. The one who loses theirs for it, if somebody does, is told.
    pub(super) fn take(self: &Arc<Self>, holder: Holder) -> Seat {
        let evicted = CancellationToken::new();
        let (rank, victim) = self.room().enter(holder, evicted.clone());
        if let Some(victim) = victim {
            victim.cancel();
        }
        Seat { seats: Arc::clone(self), rank: Mutex::new(rank), evicted }
    }

    /// Takes the seat of the one whose turn it is. False if nobody sits here.
    pub(super) fn evict_oldest(&self) -> bool {
        let victim = self.room().evict();
        victim.map(|victim| victim.cancel()).is_some()
    }

    fn room(&self) -> MutexGuard<'_, Room<CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A seat; dropping it gives it back.
pub(super) struct Seat {
    seats: Arc<Seats>,
    rank: Mutex<Rank>,
    evicted: CancellationToken,
}

impl Seat {
    /// Waits until the seat is taken away.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Tells whether a call is open. A sign of life.
    pub(super) fn set_busy(&self, busy: bool) {
        let mut rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.seats.room().change(*rank, busy);
        if let Some(changed) = changed {
            *rank = changed;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let rank = *self.rank.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.seats.room().leave(rank);
    }
}
