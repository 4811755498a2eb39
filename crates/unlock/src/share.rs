//! Shares of a cluster unlock key: made, told apart, and put together again.

use std::fmt;

use polis_secret::Secret32;
use rand::CryptoRng;
use sha2::{Digest as _, Sha256};
use vsss_rs::Gf256;
use zeroize::Zeroizing;

use crate::{ClusterUnlockKey, Scheme};

/// What is hashed before a share.
const HASH_LABEL: &[u8] = b"polis share of a cluster unlock key v1\0";

/// One share: the key itself where one is enough, else its point of the polynomials by Shamir.
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    /// Which one it is: 1 to 255. Not secret.
    x: u8,
    y: Secret32,
}

impl Share {
    /// The share with these parts.
    #[must_use]
    pub const fn new(x: u8, y: Secret32) -> Self {
        Self { x, y }
    }

    /// Which one it is.
    #[must_use]
    pub const fn x(&self) -> u8 {
        self.x
    }

    /// Its secret part.
    #[must_use]
    pub const fn y(&self) -> &Secret32 {
        &self.y
    }

    /// What tells the right share from a wrong one.
    #[must_use]
    pub fn hash(&self) -> ShareHash {
        let hash = Sha256::new().chain_update(HASH_LABEL).chain_update([self.x]).chain_update(self.y.expose());
        ShareHash(hash.finalize().into())
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Share({})", self.x)
    }
}

/// SHA-256 over a label and a share, as the unlock file holds it: it says whose share is wrong. A share has as many random bits as
/// the key, so that its hash gives nothing away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareHash([u8; 32]);

impl ShareHash {
    /// The hash with these bytes, as a file holds them.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a file.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Makes `count` shares, numbered from 1. With [`Scheme::Local`] there are none.
///
/// # Panics
///
/// When more shares are needed than there are, or there are more than 255: whoever asks has decided both by a member list, which
/// allows neither.
pub(crate) fn make(key: &ClusterUnlockKey, scheme: Scheme, count: u8, random: &mut impl CryptoRng) -> Vec<Share> {
    match scheme {
        Scheme::Local => Vec::new(),
        Scheme::Copies => (1..=count).map(|x| Share::new(x, key.secret().clone())).collect(),
        Scheme::Shamir { needed } => {
            let points = Gf256::split_bytes(needed.get().into(), count.into(), key.secret().expose(), random)
                .expect("a member list has more members than are needed");
            points.into_iter().map(Zeroizing::new).map(|point| from_point(&point)).collect()
        }
    }
}

/// The key that these shares give. Too few, or wrong ones, give a wrong key without any sign: compare the check value. Nothing when
/// there are none, or two of one number.
pub(crate) fn combine(scheme: Scheme, shares: &[&Share]) -> Option<ClusterUnlockKey> {
    match scheme {
        Scheme::Local => None,
        Scheme::Copies => shares.first().map(|share| ClusterUnlockKey::new(share.y.clone())),
        Scheme::Shamir { .. } => {
            let points: Vec<Vec<u8>> = shares.iter().map(|share| [&[share.x][..], share.y.expose()].concat()).collect();
            let points = Zeroizing::new(points);
            let secret = Zeroizing::new(Gf256::combine_bytes(&*points).ok()?);
            Secret32::try_from(&secret[..]).ok().map(ClusterUnlockKey::new)
        }
    }
}

/// As `vsss-rs` writes a point: the number, then one byte for each byte of the secret.
fn from_point(point: &[u8]) -> Share {
    let (x, y) = point.split_first().expect("a point begins with its number");
    Share::new(*x, Secret32::try_from(y).expect("a share is as long as the key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsets(shares: &[Share], size: usize) -> Vec<Vec<&Share>> {
        (0..1_u32 << shares.len())
            .filter(|set| set.count_ones() as usize == size)
            .map(|set| (0..shares.len()).filter(|index| set & 1 << index != 0).map(|index| &shares[index]).collect())
            .collect()
    }

    #[test]
    fn exactly_as_many_as_are_needed_give_the_key_for_every_number_of_voters() {
        for voters in 2..=crate::VOTERS_LIMIT {
            let scheme = Scheme::of(voters, true).unwrap();
            let key = ClusterUnlockKey::new(Secret32::random());
            let shares = make(&key, scheme, voters as u8 - 1, &mut rand::rng());
            let numbers: Vec<u8> = shares.iter().map(Share::x).collect();
            assert_eq!(numbers, (1..voters as u8).collect::<Vec<_>>());
            let needed = usize::from(scheme.shares_needed());
            for set in subsets(&shares, needed) {
                assert_eq!(combine(scheme, &set), Some(key.clone()));
            }
            for set in subsets(&shares, needed - 1) {
                assert_ne!(combine(scheme, &set), Some(key.clone()), "{set:?} of {voters}");
            }
        }
    }

    #[test]
    fn a_local_key_has_no_shares_and_two_of_one_number_give_nothing() {
        let key = ClusterUnlockKey::new(Secret32::random());
        assert_eq!(make(&key, Scheme::Local, 3, &mut rand::rng()), []);
        assert_eq!(combine(Scheme::Local, &[]), None);
        let scheme = Scheme::with_shares(2);
        let shares = make(&key, scheme, 3, &mut rand::rng());
        assert_eq!(combine(scheme, &[&shares[0], &shares[0]]), None);
    }

    #[test]
    fn a_hash_is_of_one_share_only() {
        let share = Share::new(1, Secret32::new([7; 32]));
        assert_eq!(share.hash(), share.clone().hash());
        assert_ne!(share.hash(), Share::new(2, Secret32::new([7; 32])).hash());
        assert_ne!(share.hash(), Share::new(1, Secret32::new([8; 32])).hash());
        assert_eq!(format!("{share:?}"), "Share(1)");
    }
}
