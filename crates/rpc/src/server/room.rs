//! Who sits and who has to go when there are no seats left. Pure: time is the order of events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use polis_identity::PublicKey;

/// What one holder can have only so many seats of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// A place in the network, see [`Holder::at`].
    Address(IpAddr),
    /// The key of a certificate of the cluster.
    Key(PublicKey),
}

impl Holder {
    /// One IPv4 address; of IPv6 the 64 bits that are one network, as whoever has one address of it has them all.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        })
    }
}

/// How many seats there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomLimits {
    /// In all; at least one.
    pub(super) all: usize,
    /// For one holder; at least one.
    pub(super) each: usize,
}

/// Whose turn it is to go: the idle before the busy, and the longer ones before the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    busy: bool,
    number: u64,
}

/// A room with seats. Somebody always gets a seat; when there is none left, another one loses theirs.
pub(super) struct Room<T> {
    limits: RoomLimits,
    seats: BTreeMap<Rank, (Holder, T)>,
    by_holder: HashMap<Holder, BTreeSet<Rank>>,
    next: u64,
}

impl<T> Room<T> {
    pub(super) fn new(limits: RoomLimits) -> Self {
        Self { limits, seats: BTreeMap::new(), by_holder: HashMap::new(), next: 0 }
    }

    /// Takes a seat as one who is idle. Returns whose seat was taken away, if the room was full for this holder or for all.
    pub(super) fn enter(&mut self, holder: Holder, guest: T) -> (Rank, Option<T>) {
        let own = self.by_holder.get(&holder);
        let victim = if own.is_some_and(|own| own.len() >= self.limits.each) {
            own.and_then(|own| own.first().copied())
        } else if self.seats.len() >= self.limits.all {
            self.seats.keys().next().copied()
        } else {
            None
        };
        let evicted = victim.and_then(|victim| self.leave(victim));
        let rank = self.rank(false);
        self.sit(rank, holder, guest);
        (rank, evicted)
    }

    /// Somebody became busy or idle; this counts as a sign of life. `None` if the seat was taken away.
    pub(super) fn change(&mut self, rank: Rank, busy: bool) -> Option<Rank> {
        let (holder, guest) = self.remove(rank)?;
        let rank = self.rank(busy);
        self.sit(rank, holder, guest);
        Some(rank)
    }

    /// Gives a seat back, unless it was taken away.
    pub(super) fn leave(&mut self, rank: Rank) -> Option<T> {
        self.remove(rank).map(|(_, guest)| guest)
    }

    /// Takes the seat of the one whose turn it is.
    pub(super) fn evict(&mut self) -> Option<T> {
        let first = self.seats.keys().next().copied()?;
        self.leave(first)
    }

    fn rank(&mut self, busy: bool) -> Rank {
        self.next += 1;
        Rank { busy, number: self.next }
    }

    fn sit(&mut self, rank: Rank, holder: Holder, guest: T) {
        self.seats.insert(rank, (holder, guest));
        self.by_holder.entry(holder).or_default().insert(rank);
    }

    fn remove(&mut self, rank: Rank) -> Option<(Holder, T)> {
        let (holder, guest) = self.seats.remove(&rank)?;
        if let Some(own) = self.by_holder.get_mut(&holder) {
            own.remove(&rank);
            if own.is_empty() {
                self.by_holder.remove(&holder);
            }
        }
        Some((holder, guest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(last: u8) -> Holder {
        Holder::at([10, 0, 0, last].into())
    }

    /// Takes a seat and tells who lost theirs.
    fn enter(room: &mut Room<u32>, last: u8, guest: u32) -> (Rank, Option<u32>) {
        room.enter(holder(last), guest)
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut room = Room::new(RoomLimits { all: 3, each: 3 });
        for guest in 1..=3 {
            assert_eq!(enter(&mut room, 1, guest).1, None);
        }
        assert_eq!(enter(&mut room, 2, 4).1, Some(1));
        assert_eq!(enter(&mut room, 2, 5).1, Some(2));
    }

    #[test]
    fn a_holder_with_too_many_loses_its_own() {
        let mut room = Room::new(RoomLimits { all: 10, each: 2 });
        enter(&mut room, 9, 0);
        enter(&mut room, 1, 1);
        enter(&mut room, 1, 2);
        assert_eq!(enter(&mut room, 1, 3).1, Some(1));
        assert_eq!(enter(&mut room, 1, 4).1, Some(2));
    }

    #[test]
    fn the_busy_go_last_and_a_sign_of_life_counts() {
        let mut room = Room::new(RoomLimits { all: 3, each: 3 });
        let first = enter(&mut room, 1, 1).0;
        let second = enter(&mut room, 2, 2).0;
        enter(&mut room, 3, 3);
        let first = room.change(first, true).unwrap();
        room.change(second, false).unwrap();
        assert_eq!(enter(&mut room, 4, 4).1, Some(3));
        assert_eq!(enter(&mut room, 5, 5).1, Some(2));
        assert!(room.change(first, false).is_some());
        assert_eq!(enter(&mut room, 6, 6).1, Some(4));
        assert_eq!(enter(&mut room, 7, 7).1, Some(5));
        assert_eq!(enter(&mut room, 8, 8).1, Some(1));
    }

    #[test]
    fn a_seat_that_was_taken_away_is_not_there_to_be_given_back() {
        let mut room = Room::new(RoomLimits { all: 1, each: 1 });
        let first = enter(&mut room, 1, 1).0;
        let (second, evicted) = enter(&mut room, 2, 2);
        assert_eq!(evicted, Some(1));
        assert_eq!(room.leave(first), None);
        assert_eq!(room.change(first, true), None);
        assert_eq!(room.leave(second), Some(2));
        assert!(room.seats.is_empty() && room.by_holder.is_empty());
    }

    #[test]
    fn one_network_is_one_holder() {
        let at = |text: &str| Holder::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:0:0:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
    }
}
